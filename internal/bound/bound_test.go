package bound

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Nobody and the anonymous user are strangers.
func TestCaller(t *testing.T) {
	anonymous := &user.DefaultInfo{Name: user.Anonymous}
	for _, tc := range []struct {
		remote string
		want   Source
	}{
		{"10.1.2.3:4567", Source{Address: "10.1.2.3", Conn: "10.1.2.3:4567"}},
		{"[::ffff:10.1.2.3]:4567", Source{Address: "10.1.2.3", Conn: "[::ffff:10.1.2.3]:4567"}},
		{"[2001:db8:1:2:3:4:5:6]:7", Source{Address: "2001:db8:1:2::/64", Conn: "[2001:db8:1:2:3:4:5:6]:7"}},
		{"[fe80::1%eth0]:7", Source{Address: "fe80::/64", Conn: "[fe80::1%eth0]:7"}},
		{"pipe", Source{Address: "pipe"}},
		{"", Source{}},
	} {
		for _, got := range []Source{Stranger(tc.remote), Caller(nil, tc.remote), Caller(anonymous, tc.remote)} {
			check.Same(t, tc.want, got, "%s", tc.remote)
		}
	}
	check.Same(t, Source{User: "ann"}, Caller(&user.DefaultInfo{Name: "ann"}, "10.1.2.3:4567"), "a user")
}

// source reads a user, an address, or a stranger's connection.
func source(name string) Source {
	switch {
	case strings.Contains(name, ":"):
		return Stranger(name)
	case strings.Contains(name, "."):
		return Source{Address: name}
	}
	return Source{User: name}
}

// Each source has its share of the places, and those that are given back are there for all.
func TestPlaces(t *testing.T) {
	const back = -1 // all but want are given back
	type step struct {
		who     string
		n, want int // asked for, one by one until one is refused, and got
	}
	for name, tc := range map[string]struct {
		lend  bool
		most  int64
		steps []step
	}{
		"a user":               {false, 400, []step{{"a", 1000, 100}, {"b", 1000, 100}, {"c", 1000, 100}, {"d", 1000, 100}, {"e", 1, 0}}},
		"a connection":         {false, 1024, []step{{"10.0.0.1:1", 1000, 64}, {"10.0.1.1:1", 1000, 64}, {"10.0.2.1:1", 1000, 64}}},
		"an address":           {false, 1024, []step{{"10.0.0.1", 1000, 256}, {"10.0.1.1:1", 1000, 64}, {"10.0.2.1:1", 1000, 64}}},
		"the least":            {false, 3, []step{{"a", 1000, 1}, {"b", 1000, 1}, {"c", 1000, 1}, {"d", 1000, 0}}},
		"one place":            {false, 1, []step{{"a", 1000, 1}, {"b", 1000, 0}}},
		"no bound":             {false, 0, []step{{"a", 1000, 1000}, {"b", 1000, 1000}}},
		"lent":                 {true, 400, []step{{"a", 1000, 388}, {"b", 1000, 12}, {"c", 1000, 0}}},
		"lent of many":         {true, 1024, []step{{"a", 1000, 992}, {"b", 1000, 32}, {"c", 1000, 0}}},
		"lent of few":          {true, 4, []step{{"a", 1000, 3}, {"b", 1000, 1}, {"c", 1000, 0}}},
		"lent of one":          {true, 1, []step{{"a", 1000, 1}, {"b", 1000, 0}}},
		"lent without a bound": {true, 0, []step{{"a", 1000, 1000}, {"b", 1000, 1000}}},
		// Connections of one address share a quarter, and what is given back is taken again.
		"connections of an address": {false, 1024, []step{
			{"10.0.0.1:1", 1000, 64}, {"10.0.0.1:2", 1000, 64}, {"10.0.0.1:3", 1000, 64}, {"10.0.0.1:4", 1000, 64}, {"10.0.0.1:5", 1000, 0},
			{"10.0.0.1:1", back, 63}, {"10.0.0.1:5", 1000, 1}, {"10.0.0.1:1", 1000, 0},
		}},
		// Lent places that are given back go to other sources.
		"lent places come back": {true, 400, []step{
			{"a", 1000, 388}, {"b", 1000, 12}, {"a", back, 387}, {"a", 1, 0}, {"b", 1000, 1}, {"a", back, 386}, {"a", 1, 0}, {"b", 1000, 1},
		}},
		// Places lent from the first quarter count for no source, those beyond it do.
		"the first quarter": {true, 400, []step{{"a", 1000, 388}, {"a", back, 100}, {"b", 200, 200}, {"a", 1000, 100}}},
		"and beyond it":     {true, 400, []step{{"a", 133, 133}, {"b", 160, 160}, {"a", 1000, 388 - 133 - 160}}},
	} {
		p, held := &Places{Lend: tc.lend}, map[string][]Place{}
		leave := func(who string, from int) {
			for i := range held[who][from:] {
				held[who][from+i].Leave()
				held[who][from+i].Leave() // a second Leave has no effect
			}
			held[who] = held[who][:from]
		}
		for i, step := range tc.steps {
			if step.n == back {
				leave(step.who, step.want)
				continue
			}
			got := 0
			for ; got < step.n; got++ {
				place, ok := p.Take(source(step.who), 1, tc.most)
				if !ok {
					break
				}
				held[step.who] = append(held[step.who], place)
			}
			check.Same(t, step.want, got, "%s, step %d: places of %d for %s", name, i, tc.most, step.who)
		}
		for who := range held {
			leave(who, 0)
		}
		check.Same(t, [2]int{}, [2]int{int(p.Held()), len(p.by)}, "%s: places and sources after all have left", name)
	}
}

func TestPlacesAllocateNothing(t *testing.T) {
	p, s := &Places{Lend: true}, Source{User: "ann"}
	for _, most := range []int64{1, 400} { // counted by source, and not
		check.Same(t, 0, testing.AllocsPerRun(100, func() {
			place, _ := p.Take(s, 1, most)
			place.Leave()
		}), "allocations of a place of %d", most)
	}
}

// TestQueueShares: a flood of one source is refused beyond its quarter, uses a quarter of the
// slots, and delays no other source. So is that of an address with many connections.
func TestQueueShares(t *testing.T) {
	user := func(int) Source { return Source{User: "flood"} }
	connection := func(int) Source { return Stranger("10.0.0.1:1") }
	address := func(i int) Source { return Stranger(fmt.Sprint("10.0.0.1:", i+1)) }
	for _, tc := range []struct {
		name          string
		q             *Queue
		flood         func(i int) Source
		n             int // what each counts as
		waits, active int
	}{
		{"a user", NewQueue(64, 1024), user, 1, 256, 16},
		{"a connection", NewQueue(64, 1024), connection, 1, 64, 4},
		{"an address", NewQueue(64, 1024), address, 1, 256, 16},
		{"a user, in bytes", NewApart(64, 1024<<10), user, 1 << 10, 256, 16},
		{"a connection, in bytes", NewApart(64, 1024<<10), connection, 1 << 10, 64, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := tc.q
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				results := make(chan error, 2000)
				active := 0
				for i := range 2000 {
					go func() {
						leave, err := q.Enter(ctx, tc.flood(i), tc.n)
						if err == nil {
							active++ // no race: synctest runs them one at a time
							<-ctx.Done()
							leave()
						}
						results <- err
					}()
					synctest.Wait()
				}
				check.Same(t, true, len(results) == 2000-tc.waits && active == tc.active, "%d refused and %d active, want %d and %d", len(results), active, 2000-tc.waits, tc.active)
				must.Get(q.Enter(ctx, Source{User: "other"}, tc.n))(t)()
				time.Sleep(11 * time.Second)
				synctest.Wait()
				late := 0
				for range 2000 {
					if err := <-results; errors.Is(err, context.DeadlineExceeded) {
						late++
					}
				}
				check.Same(t, tc.waits-tc.active, late, "waits that failed")
				check.Same(t, false, q.callers.Held() != 0 || len(q.by) != 0 || q.slots != nil && !q.slots.TryAcquire(q.share), "%d places and %d lines are left, or slots", q.callers.Held(), len(q.by))
			})
		})
	}
}

// TestQueueCounts: who comes too late takes no slot, and who leaves gives back only its own.
func TestQueueCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, ann, nobody := NewQueue(16, 16), Source{User: "ann"}, Source{}
		late, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range 4 {
			must.Get(q.Enter(t.Context(), nobody, 1))(t)
			leave := must.Get(q.Enter(t.Context(), ann, 1))(t)
			if i > 0 {
				leave()
			}
		}
		check.Is(t, ErrFull, check.Err(q.Enter(t.Context(), nobody, 1)), "one source has five of sixteen places")
		for range 100 {
			check.Is(t, context.Canceled, check.Err(q.Enter(late, ann, 1)), "too late")
		}
		must.Get(q.Enter(t.Context(), ann, 1))(t) // would wait for ever

		q = NewQueue(16, 16)
		for i := range 16 {
			must.Get(q.Enter(t.Context(), Source{User: fmt.Sprint(i / 4)}, 1))(t)
		}
		check.Is(t, ErrFull, check.Err(q.Enter(t.Context(), ann, 1)), "a fifth source, while four have all places")

		q = NewQueue(4, 16)
		var leave func()
		for i := range 4 {
			leave = must.Get(q.Enter(t.Context(), Source{User: fmt.Sprint(i)}, 1))(t)
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		turn := make(chan struct{})
		go func() {
			defer close(turn)
			time.Sleep(time.Second / 2) // after the one that will give up
			must.Get(q.Enter(t.Context(), ann, 1))(t)()
		}()
		check.Is(t, context.DeadlineExceeded, check.Err(q.Enter(soon, ann, 1)), "a fifth source, while four run")
		leave()
		<-turn // would wait for ever if the other had kept ann's slot
	})
}

// TestQueueTurns: waiting requests of a source get their turns in order, when others leave. In a
// queue without a limit for all, another source does not wait, whoever runs.
func TestQueueTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ann, order := Source{User: "ann"}, make(chan int, 10)
		for _, q := range []*Queue{NewQueue(4, 64), NewApart(4, 64)} {
			first := must.Get(q.Enter(t.Context(), ann, 1))(t)
			for i := range 10 {
				go func() {
					defer must.Get(q.Enter(t.Context(), ann, 1))(t)()
					order <- i
				}()
				synctest.Wait()
			}
			check.Same(t, 0, len(order), "beside the one of four slots that a source has")
			first()
			for i := range 10 {
				check.Same(t, i, <-order, "turn")
			}
			synctest.Wait()
			check.Same(t, 0, len(q.by), "queues that are left")
		}
		q := NewApart(4, 64)
		for i := range 16 {
			must.Get(q.Enter(t.Context(), Source{User: fmt.Sprint(i)}, 1))(t) // would wait for ever
		}
	})
}

// A tally names the busiest source of the last one or two minutes, in bounded memory, whoever else
// comes, and forgets it afterwards.
func TestTally(t *testing.T) {
	const text = "limit inflight: 3 of 4 places are held, at least 2 by jane; 5 requests got 429 in the last two minutes, 4 of them from bob"
	check.Same(t, text, Limit{Name: "inflight", Most: 4, Held: 3, Holds: 2, Holder: "jane", Refused: 5, Times: 4, By: "bob"}.String(), "in words")
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
