package backend

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A word is an endpoint: its address, and after a colon h for healthy, u for unhealthy, t for terminating, s for slow
// and f for far. Wanted are those that are preferred, slow ones, and the rest; "unusable" says that none is good.
func TestArrange(t *testing.T) {
	for _, tt := range []struct{ name, endpoints, want string }{
		{"none", "", "[] [] [] unusable"},
		{"healthy", "a:h b:h", "[a b] [] []"},
		{"healthy before all others", "a:u b: c:ht d:h e:hs", "[d] [e] [b c]"},
		{"slow ones alone", "a:hs b:u", "[a] [] []"},
		{"slow before unprobed", "a: b:hs", "[b] [] [a]"},
		{"at the start", "a: b:", "[a b] [] []"},
		{"terminating as last resort", "a:ht b:u", "[a] [] []"},
		{"unprobed before terminating", "a:ht b:", "[b] [] [a]"},
		{"near before far", "a:hf b:h c:hsf d:hs e:f", "[b] [d] [a c e]"},
		{"far while none near is healthy", "a:hf b:u c:hs d:", "[a] [c] [d]"},
		{"never eject all", "a:u b:u", "[a b] [] [] unusable"},
		{"never eject all, terminating", "a:ut b:ut", "[a b] [] [] unusable"},
	} {
		var list []registry.Endpoint
		known := make(map[string]*endpoint)
		for word := range strings.FieldsSeq(tt.endpoints) {
			address, is, _ := strings.Cut(word, ":")
			has := func(mark string) bool { return strings.Contains(is, mark) }
			e := registry.Endpoint{Address: address, Terminating: has("t"), Slow: has("s"), Far: has("f")}
			if has("h") {
				e.Health = registry.Healthy
			} else if has("u") {
				e.Health = registry.Unhealthy
			}
			list, known[address] = append(list, e), &endpoint{address: address}
		}
		v, got := &view{}, []any{}
		v.arrange(list, known)
		for _, part := range [][]*endpoint{v.preferred, v.slow, v.rest} {
			names := []string{}
			for _, e := range part {
				names = append(names, e.address)
			}
			got = append(got, names)
		}
		if !v.usable {
			got = append(got, "unusable")
		}
		check.Same(t, tt.want, strings.TrimSpace(fmt.Sprintln(got...)), "%s: endpoints", tt.name)
	}
}

// A thousand watches are spread over three endpoints within 10 %. A slow one gets few, but some, also one of many.
func TestPickSpreads(t *testing.T) {
	f := newFixture(t, nil)
	slow := healthy("10.0.0.9:443")
	slow.Slow = true
	var many []registry.Endpoint
	for i := range 150 {
		many = append(many, registry.Endpoint{Address: fmt.Sprintf("10.0.1.%d:443", i), Health: registry.Healthy, Slow: true})
	}
	for _, tt := range []struct {
		endpoints      []registry.Endpoint
		n, least, most int // of each, or of the slow one
	}{
		{three, 999, 300, 366},
		{append([]registry.Endpoint{slow}, three[0]), 10_000, 1, 100},
		{append([]registry.Endpoint{slow}, three...), 10_000, 1, 100},
		{append(many, three...), 150 * 2 * slowEvery, 2, 2},
	} {
		u := f.Upstream(f.set(tt.endpoints...))
		got := map[string]int{}
		var leases []*endpoint
		for range tt.n {
			l := u.take(nil)
			got[l.address]++
			leases = append(leases, l)
			if tt.endpoints[0].Slow {
				l.release()
				leases = nil
			}
		}
		for _, e := range tt.endpoints {
			n := got[e.Address]
			check.Same(t, false, (e.Slow || tt.n == 999) && (n < tt.least || n > tt.most), "%s got %d of %d among %d", e.Address, n, tt.n, len(tt.endpoints))
		}
		for _, l := range leases {
			l.release()
		}
		for _, e := range u.snapshot() {
			check.Same(t, 0, e.inFlight.Load(), "requests in flight at %s", e.address)
		}
	}
}

// Retries use each other endpoint once, however busy it is, then those of lower tiers, and never unhealthy ones.
func TestPickAvoids(t *testing.T) {
	f := newFixture(t, nil)
	e := f.set(healthy("a:1"), healthy("b:1"), registry.Endpoint{Address: "c:1"}, registry.Endpoint{Address: "d:1", Health: registry.Unhealthy})
	u := f.Upstream(e)
	u.at("b:1").inFlight.Add(10)
	for range 100 {
		var avoid []*endpoint
		var tried []*engine.Endpoint
		var got []string
		for range 3 {
			l := u.pick(nil, tried) // as the engine does
			l.Release()
			at, _ := l.Value.(*endpoint)
			tried, avoid, got = append(tried, l), append(avoid, at), append(got, l.Name)
		}
		slices.Sort(got[:2])
		check.Same(t, []string{"a:1", "b:1", "c:1"}, got, "endpoints")
		l := u.take(nil, avoid...)
		must.Be(t, l != nil && (l.address == "a:1" || l.address == "b:1"), "with all avoided: got %v", l)
		l.release()
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

// Limits apply immediately. One user may hold more than a quarter: a controller may be an extension server's only
// client.
func TestAcquire(t *testing.T) {
	f := newFixture(t, nil)
	for _, tt := range []struct{ limit, users, want int }{{3, 5, 3}, {3, 1, 2}, {4, 1, 3}, {0, 1, 9}} {
		for i, policy := range []registry.Settings{{MaxInFlight: tt.limit, MaxLongRunning: 1}, {MaxInFlight: 1, MaxLongRunning: tt.limit}} {
			f.policy = policy // the other kind's limit is another
			u := f.Upstream(f.set(healthy("10.0.0.1:443")))
			limiter := []*bound.Places{&u.inFlight, &u.longRunning}[i]
			for round := range 2 { // the second time the places are free again
				var places []bound.Place
				refused := u.meter.rejected[i].Load()
				for n := range 9 {
					if place, ok := u.Acquire(bound.Source{User: fmt.Sprint(n % tt.users)}, i == 1); ok {
						places = append(places, place)
					}
				}
				got := [2]uint64{uint64(len(places)), u.meter.rejected[i].Load() - refused}
				check.Same(t, [2]uint64{uint64(tt.want), uint64(9 - tt.want)}, got, "%+v, limit %d, round %d: places, refused", tt, i, round)
				for i := range places {
					places[i].Leave()
				}
			}
			check.Same(t, 0, limiter.Held(), "places held at the end")
		}
	}
}

// A request that waits for its body counts with what it takes itself, however short the body is.
func TestWaitingForABodyCounts(t *testing.T) {
	f := newFixture(t, nil)
	end, err := f.Upstream(f.set(healthy("10.0.0.1:443"))).Hold(newRequest(t, "POST", "x"), bound.Source{User: "ann"})
	check.Is(t, nil, err, "holding a body")
	check.Same(t, waiting+1, f.memory.Held(), "bytes counted meanwhile")
	end()
	check.Same(t, 0, f.memory.Held(), "bytes counted afterwards")
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
		_, ok := u.Share(true).Take(bob, 1, 1)
		check.Same(t, true, ok, "a share")
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
