package bound

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
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
			if got != tc.want {
				t.Errorf("%s: %+v, want %+v", tc.remote, got, tc.want)
			}
		}
	}
	check.Same(t, Source{User: "ann"}, Caller(&user.DefaultInfo{Name: "ann"}, "10.1.2.3:4567"), "a user")
}

// fill takes up to n places for s, until it is refused.
func fill(p *Places, s Source, n int, most int64) (held []Place) {
	for range n {
		place, ok := p.Take(s, 1, most)
		if !ok {
			break
		}
		held = append(held, place)
	}
	return held
}

func TestShareOfPlaces(t *testing.T) {
	user := Source{User: "ann"}
	for _, tc := range []struct {
		name  string
		lend  bool
		most  int64
		first Source
		want  int // places of the first source, then those of four others
		rest  int
	}{
		{"a user", false, 400, user, 100, 300},
		{"a connection", false, 1024, Stranger("10.0.0.1:1"), 64, 4 * 64},
		{"an address", false, 1024, Source{Address: "10.0.0.1"}, 256, 4 * 64},
		{"the least", false, 3, user, 1, 2},
		{"one place", false, 1, user, 1, 0},
		{"no bound", false, 0, user, 1000, 4000},
		{"lent", true, 400, user, 388, 12},
		{"lent of many", true, 1024, user, 992, 32},
		{"lent of few", true, 4, user, 3, 1},
		{"lent of one", true, 1, user, 1, 0},
		{"lent without a bound", true, 0, user, 1000, 4000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &Places{Lend: tc.lend}
			held := fill(p, tc.first, 1000, tc.most)
			check.Same(t, tc.want, len(held), "places of %d of one source", tc.most)
			rest := 0
			for i := range 4 {
				other := Source{User: fmt.Sprint(i)}
				if tc.first.Address != "" { // other connections of the same address
					other = Source{Address: fmt.Sprint("10.0.1.", i), Conn: fmt.Sprint("10.0.1.", i, ":1")}
				}
				got := fill(p, other, 1000, tc.most)
				rest += len(got)
				held = append(held, got...)
			}
			check.Same(t, tc.rest, rest, "places of four others")
			for i := range held {
				held[i].Leave()
				held[i].Leave() // a second Leave has no effect
			}
			if p.Held() != 0 || len(p.by) != 0 {
				t.Errorf("%d places and %d sources are left after all left", p.Held(), len(p.by))
			}
		})
	}
}

// TestShareOfAnAddress: connections of one address share a quarter, and a place that is given back
// is taken again.
func TestShareOfAnAddress(t *testing.T) {
	p := &Places{}
	var held []Place
	for i := range 16 {
		held = append(held, fill(p, Stranger(fmt.Sprint("10.0.0.1:", 1000+i)), 1000, 1024)...)
	}
	check.Same(t, 256, len(held), "places of 1024 that 16 connections of an address hold")
	held[0].Leave()
	check.Same(t, 1, len(fill(p, Stranger("10.0.0.1:1"), 1000, 1024)), "places, of which one was given back")
}

// TestLentPlacesComeBack: lent places that are given back go to other sources.
func TestLentPlacesComeBack(t *testing.T) {
	p := &Places{Lend: true}
	lent := fill(p, Source{User: "ann"}, 1000, 400)
	bob := fill(p, Source{User: "bob"}, 1000, 400)
	for i := range 50 {
		lent[i].Leave()
		if _, ok := p.Take(Source{User: "ann"}, 1, 400); ok {
			t.Fatal("lent again while others were short")
		}
		bob = append(bob, fill(p, Source{User: "bob"}, 1000, 400)...)
	}
	check.Same(t, 62, len(bob), "places of the later source")
}

// TestFirstQuarter: places lent from the first quarter count for no source.
func TestFirstQuarter(t *testing.T) {
	p, ann := &Places{Lend: true}, Source{User: "ann"}
	for _, counted := range fill(p, ann, 1000, 400)[100:] {
		counted.Leave()
	}
	fill(p, Source{User: "bob"}, 200, 400)
	check.Same(t, 100, len(fill(p, ann, 1000, 400)), "places beside the first hundred")

	p = &Places{Lend: true}
	fill(p, ann, 133, 400)
	fill(p, Source{User: "bob"}, 160, 400)
	check.Same(t, 388-133-160, len(fill(p, ann, 1000, 400)), "places, as those beyond the first hundred were counted")
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
// slots, and delays no other source.
func TestQueueShares(t *testing.T) {
	for _, tc := range []struct {
		name          string
		flood         Source
		waits, active int
	}{
		{"a user", Source{User: "flood"}, 256, 16},
		{"a connection", Stranger("10.0.0.1:1"), 64, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := NewQueue(64, 1024)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				results := make(chan error, 2000)
				active := 0
				for range 2000 {
					go func() {
						leave, err := q.Enter(ctx, tc.flood)
						if err == nil {
							active++ // no race: synctest runs them one at a time
							<-ctx.Done()
							leave()
						}
						results <- err
					}()
					synctest.Wait()
				}
				if len(results) != 2000-tc.waits || active != tc.active {
					t.Errorf("%d refused and %d active, want %d and %d", len(results), active, 2000-tc.waits, tc.active)
				}
				other, err := q.Enter(ctx, Source{User: "other"})
				if err != nil {
					t.Fatalf("another's: %v", err)
				}
				other()
				time.Sleep(11 * time.Second)
				synctest.Wait()
				late := 0
				for range 2000 {
					if err := <-results; errors.Is(err, context.DeadlineExceeded) {
						late++
					}
				}
				check.Same(t, tc.waits-tc.active, late, "waits that failed")
				if q.held != 0 || len(q.by) != 0 || len(q.slots) != 0 {
					t.Errorf("%d places, %d lines and %d slots are left", q.held, len(q.by), len(q.slots))
				}
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
			must.Get(q.Enter(t.Context(), nobody))(t)
			leave := must.Get(q.Enter(t.Context(), ann))(t)
			if i > 0 {
				leave()
			}
		}
		if _, err := q.Enter(t.Context(), nobody); !errors.Is(err, ErrFull) {
			t.Errorf("one source has five of sixteen places: %v", err)
		}
		for range 100 {
			if _, err := q.Enter(late, ann); !errors.Is(err, context.Canceled) {
				t.Errorf("too late: %v", err)
			}
		}
		must.Get(q.Enter(t.Context(), ann))(t) // would wait for ever
	})
}

// TestQueueTurns: a waiting request gets its turn when another leaves.
func TestQueueTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(4, 64)
		first := must.Get(q.Enter(t.Context(), Source{User: "ann"}))(t)
		turn := false
		go func() {
			leave, err := q.Enter(t.Context(), Source{User: "ann"})
			if err != nil {
				t.Error(err)
				return
			}
			turn = true
			leave()
		}()
		synctest.Wait()
		if turn {
			t.Error("a source has two of four slots")
		}
		first()
		synctest.Wait()
		if !turn {
			t.Error("the second's turn has not come")
		}
	})
}
