package bound_test

import (
	"fmt"

	"github.com/fairlead-proxy/fairlead/registry/bound"
)

// Of eight places, a source gets two, with or without others.
func ExamplePlaces() {
	var places bound.Places
	alice, bob := bound.Source{User: "alice"}, bound.Source{User: "bob"}
	take := func(s bound.Source) (p bound.Place, ok bool) {
		p, ok = places.Take(s, 1, 8)
		fmt.Println(s.User, ok, places.Held())
		return p, ok
	}
	first, _ := take(alice)
	take(alice)
	take(alice)
	take(bob)
	first.Leave()
	take(alice)
	// Output:
	// alice true 1
	// alice true 2
	// alice false 2
	// bob true 3
	// alice true 3
}
