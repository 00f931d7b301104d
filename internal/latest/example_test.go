package latest_test

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/fairlead-proxy/fairlead/internal/latest"
)

// prices is a state: it does not change once it is stored.
type prices struct {
	list     []*price // by name
	replaced chan struct{}
}

type price struct {
	name  string
	cents int
}

func (p *prices) Superseded() <-chan struct{} { return p.replaced }
func (p *prices) Servers() []*price           { return p.list }
func (p *price) Key() string                  { return p.name }

// A writer stores a new state and then closes the channel of the old one. Followers receive what
// has changed; unchanged elements keep their pointers.
func ExampleChanges() {
	tea, coffee := &price{"tea", 200}, &price{"coffee", 300}
	first := &prices{[]*price{coffee, tea}, make(chan struct{})}
	next := &prices{[]*price{{"coffee", 310}, tea}, make(chan struct{})}

	var state atomic.Pointer[prices]
	state.Store(first)
	for now, changes := range latest.Changes(context.Background(), state.Load, nil) {
		for _, c := range changes {
			fmt.Println(c.Key(), c.New.cents)
		}
		if now == next {
			break
		}
		fmt.Println("--")
		state.Store(next)
		close(first.replaced)
	}
	// Output:
	// coffee 300
	// tea 200
	// --
	// coffee 310
}
