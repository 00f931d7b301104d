package backend

import (
	"slices"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

type audience struct {
	*fixture
	t     *testing.T
	u     *Upstream
	stays []*Stay
	held  []*endpoint
}

func newAudience(t *testing.T, clients int, endpoints ...registry.Endpoint) *audience {
	t.Helper()
	a := &audience{fixture: newFixture(t, nil), t: t}
	a.u = a.Upstream(a.set(endpoints...))
	for range clients {
		a.stays = append(a.stays, (*Local)(nil).Stay(t.Context()))
	}
	return a
}

func (a *audience) at() (out []string) {
	for _, s := range a.stays {
		l := a.u.take(s)
		l.release()
		out = append(out, l.address)
	}
	return out
}

// hold begins n requests of each connection, which do not end, and returns how many each endpoint has.
func (a *audience) hold(n int) map[string]int64 {
	for range n {
		for _, s := range a.stays {
			l := a.u.take(s)
			a.held = append(a.held, l)
		}
	}
	_, _, load, _ := a.u.Load()
	return load
}

func (a *audience) release() {
	for _, l := range a.held {
		l.release()
	}
	a.held = nil
}

var three = []registry.Endpoint{healthy(place1), healthy(place2), healthy(place3)}

// The connections of many clients are even on three endpoints: each has its own, over both protocols, for all
// APIServices of a Service. Without an endpoint, only its connections have another one.
func TestOwn(t *testing.T) {
	a := newAudience(t, 3000, three...)
	before := a.at()
	for address, n := range count(before) {
		check.Within(t, 0, 1250, n, "connections of %s, of 3,000", address)
	}
	a.house("v2.example.com", func(e *registry.Entry, b *registry.Backend) { *b, e.Endpoints = *a.backend, three })
	a.table()
	again, other := a.at(), a.up("v2.example.com")
	a.set(three[0], three[2])
	for i, now := range a.at() {
		l, _ := other.Plan(false, a.stays[i]).Forward.Pick(a.stays[i], nil).Value.(*endpoint)
		l.release()
		check.Same(t, []string{before[i], before[i]}, []string{again[i], l.address}, "endpoint of connection %d, then and for another APIService", i)
		check.Same(t, false, before[i] != place2 && now != before[i] || now == place2, "connection %d: %s, without %s %s", i, before[i], place2, now)
	}
}

// With one request of each in flight, no endpoint has more than 1.25 times its share, of whatever
// number of connections.
func TestOwnIsEven(t *testing.T) {
	for _, clients := range []int{300, 1000, 10_000} {
		a := newAudience(t, clients, three...)
		for address, n := range a.hold(1) {
			check.Within(t, 0, int64(clients*5/12), n, "requests of %s, of %d", address, clients)
		}
		a.release()
	}
}

// A few requests of a connection do not make it leave; 64 use all endpoints, in the connection's
// own order, each time the same.
func TestBusyClient(t *testing.T) {
	a := newAudience(t, 1, three...)
	own := a.at()[0]
	check.Same(t, int64(spare), a.hold(spare)[own], "requests at its own endpoint, of as many as it may have")
	a.release()
	first := a.hold(64)
	for address, n := range first {
		check.Within(t, 64/3/4, 64/3+spare, n, "requests of %s, of 64", address)
	}
	a.release()
	check.Same(t, first, a.hold(64), "requests of each endpoint, again")
	a.release()
	check.Same(t, []string{own}, a.at(), "endpoint afterwards")
}

// A few busy connections do not make another one leave.
func TestOwnBesideOthers(t *testing.T) {
	a := newAudience(t, 12, three...)
	all, want := a.stays, a.at()
	for i := range all {
		a.stays = all[i:]
		a.hold(1)
		a.stays = all
		check.Same(t, want, a.at(), "endpoints beside %d requests", len(a.held))
		a.release()
	}
}

// An endpoint that is slow, suspect or unhealthy, or that was tried, has no connections.
func TestOwnIsUsable(t *testing.T) {
	a := newAudience(t, 1, three...)
	own := a.at()[0]
	of, slow, ill := a.u.at(own), slices.Clone(three), slices.Clone(three)
	i := slices.IndexFunc(three, func(e registry.Endpoint) bool { return e.Address == own })
	slow[i].Slow, ill[i].Health = true, registry.Unhealthy
	next := func(is string) {
		t.Helper()
		got := count(slices.Concat(a.at(), a.at(), a.at(), a.at()))
		check.Same(t, true, got[own] == 0 && len(got) == 1, "another one while its endpoint %s is %s: %v", own, is, got)
	}
	report := func(r registry.Report) {
		r.Name, r.Backend, r.Address = "v1.example.com", a.entries["v1.example.com"].Backend, own
		a.Report(r)
	}
	began := time.Now()
	for _, lost := range []*endpoint{of, of.via.Load()} {
		lost.lost()
		lost.suspicion.failed.Store(new(time.Now()))
		report(registry.Report{Endpoint: registry.Endpoint{Health: registry.Unhealthy}, Began: time.Now()})
		report(registry.Report{Endpoint: registry.Endpoint{Health: registry.Healthy}, Began: began})                               // before the loss
		a.Report(registry.Report{Name: "v1.example.com", Backend: &registry.Backend{}, Endpoint: healthy(own), Began: time.Now()}) // by other trust
		next("suspect")
		report(registry.Report{Endpoint: registry.Endpoint{Health: registry.Healthy}, Began: time.Now()})
		check.Same(t, []string{own}, a.at(), "endpoint when a probe has passed")
	}
	retry := a.u.pick(a.stays[0], []*engine.Endpoint{of.forEngine()})
	check.Same(t, false, retry.Name == own, "a retry goes to the same endpoint")
	retry.Release()
	check.Same(t, false, a.u.Plan(false, a.stays[0]).Stays, "a retry stays")
	a.set(ill...)
	next("unhealthy")
	a.set(slow...)
	got := 0
	for range 10 * slowEvery {
		got += count(a.at())[own]
	}
	check.Same(t, 10, got, "requests to its slow endpoint, to notice that it has recovered")
	a.set(three...)
	for _, e := range a.u.snapshot() {
		e.lost()
	}
	check.Same(t, 1, len(a.at()), "endpoints with all suspect")
}
