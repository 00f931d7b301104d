package backend

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func TestArrange(t *testing.T) {
	// One word describes an endpoint: its address, and its state after a colon.
	endpoints := func(text string) []registry.Endpoint {
		var list []registry.Endpoint
		for word := range strings.FieldsSeq(text) {
			address, is, _ := strings.Cut(word, ":")
			e := registry.Endpoint{Address: address}
			e.Terminating = strings.Contains(is, "t")
			e.Slow = strings.Contains(is, "s")
			e.Far = strings.Contains(is, "f")
			switch {
			case strings.Contains(is, "h"):
				e.Health = registry.Healthy
			case strings.Contains(is, "u"):
				e.Health = registry.Unhealthy
			}
			list = append(list, e)
		}
		return list
	}
	for _, tt := range []struct {
		name, endpoints, preferred, slow, rest string
		usable                                 bool
	}{
		{"none", "", "", "", "", false},
		{"healthy", "a:h b:h", "a b", "", "", true},
		{"healthy before all others", "a:u b: c:ht d:h e:hs", "d", "e", "b c", true},
		{"slow ones alone", "a:hs b:u", "a", "", "", true},
		{"slow before unprobed", "a: b:hs", "b", "", "a", true},
		{"at the start", "a: b:", "a b", "", "", true},
		{"terminating as last resort", "a:ht b:u", "a", "", "", true},
		{"unprobed before terminating", "a:ht b:", "b", "", "a", true},
		{"near before far", "a:hf b:h c:hsf d:hs e:f", "b", "d", "a c e", true},
		{"far while none near is healthy", "a:hf b:u c:hs d:", "a", "c", "d", true},
		{"never eject all", "a:u b:u", "a b", "", "", false},
		{"never eject all, terminating", "a:ut b:ut", "a b", "", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list := endpoints(tt.endpoints)
			known := make(map[string]*endpoint)
			for _, e := range list {
				known[e.Address] = &endpoint{address: e.Address}
			}
			v := &view{}
			v.arrange(list, known)
			names := func(list []*endpoint) (s string) {
				for _, e := range list {
					s = strings.TrimSpace(s + " " + e.address)
				}
				return s
			}
			got := []any{names(v.preferred), names(v.slow), names(v.rest), v.usable}
			check.Same(t, []any{tt.preferred, tt.slow, tt.rest, tt.usable}, got, "endpoints")
		})
	}
}

// A thousand watches are spread over three endpoints within 10 %. A slow one gets few, but some.
func TestPickSpreads(t *testing.T) {
	f := newFixture(t, nil)
	slow := healthy("10.0.0.9:443")
	slow.Slow = true
	for _, tt := range []struct {
		slow   bool
		others int
		of     string // the address that is counted
		n      int
		least  int
		most   int
	}{
		{false, 3, "10.0.0.0:443", 999, 300, 366},
		{false, 3, "10.0.0.1:443", 999, 300, 366},
		{true, 1, slow.Address, 10_000, 1, 100},
		{true, 5, slow.Address, 10_000, 1, 100},
	} {
		var list []registry.Endpoint
		if tt.slow {
			list = append(list, slow)
		}
		for i := range tt.others {
			list = append(list, healthy(fmt.Sprintf("10.0.0.%d:443", i)))
		}
		u := f.Upstream(f.set(list...))
		got := 0
		var leases []*endpoint
		for range tt.n {
			l := u.take(nil)
			if l.address == tt.of {
				got++
			}
			if tt.slow {
				l.release()
			} else {
				leases = append(leases, l)
			}
		}
		if got < tt.least || got > tt.most {
			t.Errorf("%s got %d of %d among %d", tt.of, got, tt.n, len(list))
		}
		for _, l := range leases {
			l.release()
		}
		for _, e := range u.snapshot() {
			check.Same(t, 0, e.inFlight.Load(), "requests in flight at %s", e.address)
		}
	}
}

// Retries use each other endpoint once, then those of lower tiers, and never unhealthy ones.
func TestPickAvoids(t *testing.T) {
	f := newFixture(t, nil)
	e := f.set(healthy("a:1"), healthy("b:1"), registry.Endpoint{Address: "c:1"}, registry.Endpoint{Address: "d:1", Health: registry.Unhealthy})
	u := f.Upstream(e)
	for range 100 {
		var avoid []*endpoint
		var got []string
		for range 3 {
			l := u.take(nil, avoid...)
			if l == nil {
				t.Fatal("no endpoint")
			}
			l.release()
			avoid = append(avoid, l)
			got = append(got, l.address)
		}
		slices.Sort(got[:2])
		if d := cmp.Diff([]string{"a:1", "b:1", "c:1"}, got); d != "" {
			t.Fatal(d)
		}
		if l := u.take(nil, avoid...); l == nil || l.address == "c:1" || l.address == "d:1" {
			t.Errorf("with all avoided: got %v", l)
		} else {
			l.release()
		}
	}
}

// What every request calls does not allocate.
func TestNoAllocations(t *testing.T) {
	f := newFixture(t, nil)
	f.policy.MaxInFlight = 400
	e := f.set(healthy("10.0.0.1:443"), healthy("10.0.0.2:443"))
	by := (*Local)(nil).Stay(t.Context())
	check.Same(t, 0, testing.AllocsPerRun(1000, func() {
		n := f.Upstream(e).take(by)
		n.release()
		l := f.Upstream(e).take(nil)
		m := f.Upstream(e).take(nil, l)
		m.release()
		l.release()
		place, _ := f.Upstream(e).Acquire(bound.Source{User: "ann"}, true)
		place.Leave()
	}), "allocations")
}

func TestAcquire(t *testing.T) {
	f := newFixture(t, nil)
	f.policy = registry.Settings{MaxInFlight: 3, MaxLongRunning: 2}
	e := f.set(healthy("10.0.0.1:443"))
	u := f.Upstream(e)
	for longRunning, limit := range map[bool]int{false: 3, true: 2} {
		acquire := func(user string, want bool) bound.Place {
			t.Helper()
			place, ok := u.Acquire(bound.Source{User: user}, longRunning)
			check.Same(t, want, ok, "long-running %v, limit %d: %s got a place", longRunning, limit, user)
			return place
		}
		var places []bound.Place
		for i := range limit {
			places = append(places, acquire(fmt.Sprint(i), true))
		}
		acquire("late", false)
		places[0].Leave()
		places[0] = acquire("late", true)
		for i := range places {
			places[i].Leave()
		}
	}
	if u.inFlight.Held() != 0 || u.longRunning.Held() != 0 || u.meter.rejected[0].Load() != 1 || u.meter.rejected[1].Load() != 1 {
		t.Error("the counts are wrong")
	}
	// One user may hold more than a quarter: a controller may be an extension server's only client.
	f.policy = registry.Settings{MaxInFlight: 4, MaxLongRunning: 4}
	u = f.Upstream(f.set(healthy("10.0.0.1:443")))
	for _, longRunning := range []bool{false, true} {
		held := 0
		for range 4 {
			if place, ok := u.Acquire(bound.Source{User: "ann"}, longRunning); ok {
				defer place.Leave()
				held++
			}
		}
		check.Same(t, 3, held, "long-running %v: places of 4 that one user holds", longRunning)
	}
	// Limits apply immediately.
	f.policy = registry.Settings{}
	e = f.set(healthy("10.0.0.1:443"))
	for range 3 {
		if _, ok := f.Upstream(e).Acquire(bound.Source{User: "ann"}, true); !ok {
			t.Error("refused without a limit")
		}
	}
}

// A limit that is reached, or was lately, is described: how much is held and refused, by whom.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.policy = registry.Settings{MaxInFlight: 20, MaxLongRunning: 20}
		u := f.Upstream(f.set(healthy("10.0.0.1:443")))
		jane, bob := bound.Source{User: "jane"}, bound.Source{User: "bob"}
		check.Same(t, 0, len(u.Limits()), "limits at rest")
		check.Same(t, true, u.Room(jane, false), "room at rest")
		var held []bound.Place
		for range 30 {
			if place, ok := u.Acquire(jane, false); ok {
				held = append(held, place)
			}
		}
		describe := func() (text string) {
			for _, l := range u.Limits() {
				text += fmt.Sprintf("%s %d/%d %s %d, %d %s %d;", l.Name, l.Held, l.Most, l.Holder, l.Holds, l.Refused, l.By, l.Times)
			}
			return text
		}
		check.Same(t, "inflight 19/20 user \"jane\" 14, 11 user \"jane\" 11;", describe(), "one user has all but one place")
		check.Same(t, [2]bool{false, true}, [2]bool{u.Room(jane, false), u.Room(bob, false)}, "room for the two")
		check.Same(t, true, u.Room(jane, true), "room for a watch")
		if _, ok := u.Share(true).Take(bob, 1, 1); !ok {
			t.Error("no share")
		}
		check.Same(t, [2]bool{false, true}, [2]bool{u.Share(true).Room(bob, 1), u.Share(false).Room(bob, 1)}, "room in the shares of writes and reads")
		check.Same(t, 11, u.meter.rejected[limitInFlight].Load(), "refused, without the questions")
		u.Refuse(bob, true)
		check.Same(t, "inflight 19/20 user \"jane\" 14, 11 user \"jane\" 11;sessions 0/0  0, 1 user \"bob\" 1;", describe(), "and a session")
		time.Sleep(5 * time.Minute)
		check.Same(t, "inflight 19/20 user \"jane\" 14, 0  0;", describe(), "later, full")
		for i := range held {
			held[i].Leave()
		}
		check.Same(t, "", describe(), "later")
	})
}
