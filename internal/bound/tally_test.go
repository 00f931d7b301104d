package bound

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A tally names the busiest source of the last one or two minutes, in bounded memory, whoever else
// comes, and forgets it afterwards.
func TestTally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tally Tally
		busiest := func(total int64, who Source, n int64) {
			t.Helper()
			all, most, times := tally.Busiest()
			check.Same(t, []any{total, who, n}, []any{all, most, times}, "total, busiest and its count after %v", time.Since(time.Time{}))
		}
		busiest(0, Source{}, 0)
		jane := Source{User: "jane"}
		for i := range 1000 {
			tally.Add(jane)
			if i%2 == 0 {
				tally.Add(Source{User: fmt.Sprint(i)})
			}
		}
		check.Same(t, tallied, len(tally.now), "sources kept")
		busiest(1500, jane, 1000)
		time.Sleep(tallyTime)
		tally.Add(Source{User: "bob"})
		busiest(1501, jane, 1000)
		time.Sleep(tallyTime)
		busiest(1, Source{User: "bob"}, 1)
		time.Sleep(2 * tallyTime)
		busiest(0, Source{}, 0)
		tally.Add(Source{Address: "10.0.0.1", Conn: "10.0.0.1:7"})
		tally.Add(Source{Address: "10.0.0.1", Conn: "10.0.0.1:8"})
		busiest(2, Source{Address: "10.0.0.1"}, 2)
		for range 3 {
			tally.Add(Source{User: strings.Repeat("a", 1<<20)})
		}
		busiest(5, Source{User: strings.Repeat("a", maxName)}, 3)
	})
}

// Who holds most places is known as far as they are counted by source.
func TestBusiest(t *testing.T) {
	p := Places{Lend: true}
	check := func(who Source, n int64) {
		t.Helper()
		check.Same(t, fmt.Sprint(who, n), fmt.Sprint(p.Busiest()), "busiest and its places")
	}
	check(Source{}, 0)
	var held []Place
	for _, s := range []Source{{User: "ann"}, {User: "ann"}, {User: "bob"}, {User: "ann"}, {Address: "10.0.0.1", Conn: "10.0.0.1:7"}, {Address: "10.0.0.1", Conn: "10.0.0.1:7"}} {
		place, _ := p.Take(s, 1, 8)
		held = append(held, place)
	}
	check(Source{Address: "10.0.0.1"}, 2)
	held[5].Leave()
	held[4].Leave()
	held[3].Leave()
	check(Source{User: "bob"}, 1)
}
