package backend

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A thousand updates, CA changes and deletions leak nothing (kubernetes/kubernetes#117250 leaked a
// transport per sync). Goroutines that are left fail TestMain.
func TestNoLeaks(t *testing.T) {
	f := newFixture(t, nil)
	a, b := f.serve(place1, protoH2, nil), f.serve(place2, protoH1, nil)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newCollector(f.upstreams, true))
	use := func(i int) {
		switch i % 4 {
		case 0:
			f.backend = &registry.Backend{Namespace: "ns", Service: "svc", Port: 443, CABundle: fmt.Sprint(i)}
		case 1:
			f.backend = &registry.Backend{Namespace: "ns", Service: fmt.Sprint("svc", i), Port: 443}
		case 2:
			f.clear()
		}
		e := f.set(healthy(place1), healthy(place2))
		if i%4 == 3 {
			e = f.set(healthy(place2))
		}
		must.Get2(f.do(e, http.MethodPost, "body"))(t)
	}
	for i := range 1000 {
		use(i)
	}
	f.clear()
	must.Soon(t, 10*time.Second, "all connections to close", func() bool { return a.open.Load()+b.open.Load() == 0 })
	entries := 0
	f.byEntry.Range(func(any, any) bool { entries++; return true })
	check.Same(t, [3]int{}, [3]int{len(f.remotes), len(f.carriers), entries}, "upstreams, carriers and entries that are left")
	check.Same(t, 0, must.Get(testutil.GatherAndCount(reg))(t), "series that are left")
}

// The metrics of a Pools and of a Local can be registered together, and are well-formed.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	f := newFixture(t, func(cfg *Config) { cfg.Metrics = reg })
	f.serve(place2, protoH2, apiserver)
	l := newLocal(t, f.network, func(cfg *LocalConfig) { cfg.Metrics = reg }, place2)
	e := f.set(healthy(place1), registry.Endpoint{Address: place2})
	must.Get2(f.do(e, http.MethodGet, ""))(t)
	must.Get2(l.get(t, PoolUnproven, "good"))(t)
	const want = `
# HELP fairlead_backend_retries_total Retries, by how the previous try failed.
# TYPE fairlead_backend_retries_total counter
fairlead_backend_retries_total{after="dial",name="v1.example.com"} 1
# HELP fairlead_backend_dials_total Connections dialed, by result: ok, or the step that failed. A connection that several APIServices share counts for one of them.
# TYPE fairlead_backend_dials_total counter
fairlead_backend_dials_total{name="local-certificate",result="ok"} 0
fairlead_backend_dials_total{name="local-health",result="ok"} 0
fairlead_backend_dials_total{name="local-proven",result="ok"} 0
fairlead_backend_dials_total{name="local-unproven",result="ok"} 1
fairlead_backend_dials_total{name="v1.example.com",result="connect"} 1
fairlead_backend_dials_total{name="v1.example.com",result="ok"} 1
`
	must.Do(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "fairlead_backend_retries_total", "fairlead_backend_dials_total"))
	n := must.Get(testutil.GatherAndCount(reg, "fairlead_backend_phase_seconds"))(t)
	check.Same(t, true, n >= 6, "%d phases, at least six", n)
}

// The first look-up's end counts, which is of the server's name. Others are of an egress proxy's, and may end later.
func TestTimeToResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.before = func(ctx context.Context, _ string) {
			for range 2 {
				time.Sleep(time.Second)
				httptrace.ContextClientTrace(ctx).DNSDone(httptrace.DNSDoneInfo{})
			}
		}
		f.serve(place1, protoH1, nil)
		e := f.set(healthy(place1))
		must.Get2(f.do(e, http.MethodGet, ""))(t)
		check.Same(t, uint64(time.Second), f.Upstream(e).meter.histograms[phaseResolve].sum.Load(), "nanoseconds until resolved")
	})
}

// A request may have matched a table that is older or newer than the applied one, or chosen an
// endpoint that is removed: neither creates a pool, nor does a table that is applied late.
func TestOtherTables(t *testing.T) {
	f := newFixture(t, nil)
	old := f.set(healthy(place1))
	u := f.Upstream(old)
	chosen := u.endpoints[place1]
	f.set(healthy(place2))
	check.Same(t, true, chosen.http1() == nil, "the removed endpoint has no pool")
	f.backend = &registry.Backend{Namespace: "ns", Service: "other", Port: 443}
	f.serve(place2, protoH2, nil)
	f.set(healthy(place2))
	must.Get2(f.do(old, http.MethodPost, ""))(t) // an entry of an older table
	f.clear()
	check.Same(t, true, f.Upstream(old) == nil, "a removed entry has no upstream")
	check.Same(t, true, u.take(nil) == nil, "a closed upstream has no endpoint for a request")
}

// The engine's retries are counted by the failure that caused them.
func TestRetriesOfTheEngineAreCounted(t *testing.T) {
	f := newFixture(t, nil)
	u := f.Upstream(f.set(healthy(place1)))
	for after, want := range map[engine.Reason]engine.Reason{
		engine.ReasonDial: "dial", engine.ReasonRefused: "refused", engine.ReasonLost: "lost", engine.ReasonReset: "lost", engine.ReasonEjected: "ejected",
	} {
		count := &u.meter.retries[retryIndex(want)]
		before := count.Load()
		u.meter.retry(after)
		check.Same(t, before+1, count.Load(), "counted after %v", after)
	}
}

// APIServices with one Backend use the same connections, and no others do. With a backend without
// HTTP/2 nothing is shared. Each has its own limits, and its own verdict on an endpoint.
func TestWhoShares(t *testing.T) {
	var signaled []string
	s := newStreet(t, func(cfg *Config) { cfg.Signal = func(name, _ string, _ error) { signaled = append(signaled, name) } })
	most := map[string]int{"a": 1, "b": 2}
	for name, n := range most {
		s.house(name, func(e *registry.Entry, _ *registry.Backend) { e.Settings.MaxInFlight, e.Settings.MaxLongRunning = n, n }, healthy(place1))
	}
	s.house("c", func(_ *registry.Entry, b *registry.Backend) { b.Owner = "c" }, healthy(place1))
	s.house("d", func(_ *registry.Entry, b *registry.Backend) { b.HTTP1 = true }, healthy(place1))
	s.table()
	a, c := s.via("a"), s.via("c")
	must.Be(t, a != nil && a == s.via("b") && c != nil && c != a && s.via("d") == nil, "a uses %p, b %p, c %p, d %p", a, s.via("b"), c, s.via("d"))
	for name, of := range map[string]*Upstream{"": a, "c": c} {
		asked := ""
		s.cfg.TLS = func(apiService string, _ *registry.Backend) (*tls.Config, error) {
			asked = apiService
			return nil, errLost
		}
		_, _ = of.target.tls()
		check.Same(t, name, asked, "whom TLS was called for")
		lost, _ := of.target.guard(nil) // the kit's guard gives none to nobody
		check.Same(t, name != "", lost != nil, "the guard was called for %q", name)
	}
	for _, long := range []bool{false, true} {
		for name, want := range most {
			got := 0
			for i := range 5 {
				if place, ok := s.up(name).Acquire(bound.Source{User: fmt.Sprint(i)}, long); ok {
					got++
					defer place.Leave()
				}
			}
			check.Same(t, want, got, "%s: requests, long-running %v", name, long)
		}
	}

	// A new endpoint is reached over shared connections from its first request on. That it is
	// unhealthy for a is nothing to b.
	s.house("a", nil, registry.Endpoint{Address: place1, Health: registry.Unhealthy}, healthy(place2))
	s.house("b", nil, healthy(place1), healthy(place2))
	s.table()
	used := map[string]map[string]bool{"a": {}, "b": {}}
	for range 100 {
		for name := range used {
			l := s.up(name).take(nil)
			used[name][l.address] = true
			l.release()
		}
	}
	check.Same(t, map[string]map[string]bool{"a": {place2: true}, "b": {place1: true, place2: true}}, used, "endpoints used")
	for _, name := range []string{"a", "b"} {
		s.house(name, nil, healthy(place2))
	}
	s.table()
	known := a.snapshot()
	check.Same(t, true, s.via("a") == a && s.via("b") == a && len(known) == 1 && known[0].address == place2, "the carrier has %d endpoints; a uses %p, b %p, want %p", len(known), s.via("a"), s.via("b"), a)

	// A failure on an unused connection is signaled for one of them. The engine signals those whose requests fail.
	a.target.signal(place2, errLost)
	delete(s.entries, signaled[0])
	s.table()
	a.target.signal(place2, errLost)
	check.Same(t, true, len(signaled) == 2 && signaled[1] != signaled[0], "signaled for two: %v", signaled)
}

// After an APIService changes its target or its trust, its requests no longer use the shared
// connections. Those of its neighbours do.
func TestRetarget(t *testing.T) {
	s := newStreet(t, nil)
	for _, name := range []string{"a", "b", "c"} {
		s.house(name, nil, healthy(place1))
	}
	s.table()
	c := s.via("a")
	for name, change := range map[string]func(*registry.Entry, *registry.Backend){
		"port":         func(_ *registry.Entry, b *registry.Backend) { b.Port = 8443 },
		"service":      func(_ *registry.Entry, b *registry.Backend) { b.Service = "other" },
		"bundle":       func(_ *registry.Entry, b *registry.Backend) { b.CABundle = "other" },
		"server name":  func(_ *registry.Entry, b *registry.Backend) { b.ServerName = "other" },
		"ping timeout": func(_ *registry.Entry, b *registry.Backend) { b.PingTimeout = time.Second },
	} {
		s.house("a", change)
		s.table()
		got := s.via("a")
		check.Same(t, true, got != nil && got != c && s.via("b") == c && s.via("c") == c, "%s: uses %p, after it shared %p; its neighbours use %p and %p", name, got, c, s.via("b"), s.via("c"))
		s.house("a", func(_ *registry.Entry, b *registry.Backend) { *b = *s.entries["b"].Backend })
		s.table()
		check.Same(t, true, s.via("a") == c, "%s: uses its former connections again", name)
	}
}

// After an APIService leaves shared connections, its requests on them end once, 4 s after its trust
// in them ends, and not earlier.
func TestHeldConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStreet(t, nil)
		for _, name := range []string{"a", "b"} {
			s.house(name, nil, healthy(place1))
		}
		s.table()
		on := func() *Conn {
			c := &Conn{Conn: tls.Client(nil, &tls.Config{ServerName: "x"})}
			c.closed, c.end = context.WithCancel(context.Background())
			return c
		}
		stays, ends := on(), on()
		ended := make(chan *Conn, 40)
		for range 20 { // repeated changes
			for _, c := range []*Conn{stays, ends} {
				s.guardHeld(heldConn{s.up("a"), c}, func() { ended <- c })
			}
		}
		synctest.Wait()
		check.Same(t, 2, len(s.guarded), "guards of two connections")
		ends.end()
		synctest.Wait()
		s.lost <- struct{}{} // the other's chain expires, which ends no watch
		time.Sleep(time.Hour)
		synctest.Wait()
		s.mu.Lock()
		check.Same(t, [2]int{1, 0}, [2]int{len(s.guarded), len(ended)}, "guards, and ended, while everything is trusted")
		s.mu.Unlock()
		close(s.lost)
		time.Sleep(watchGrace - time.Millisecond)
		synctest.Wait()
		check.Same(t, 0, len(ended), "connections that ended before their grace")
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		check.Same(t, true, len(ended) == 1 && <-ended == stays && len(s.guarded) == 0, "%d ended, %d guards", len(ended), len(s.guarded))
	})
}

// A dial of a shared connection is counted once, and all who share it learn that the backend speaks
// HTTP/2. After a rotation of the proxy client certificate all connections drain. If one leaves or
// changes, only its own connections do.
func TestSharedConnections(t *testing.T) { synctest.Test(t, sharedConnections) }

func sharedConnections(t *testing.T) {
	changed := make(chan struct{})
	s := newStreet(t, func(cfg *Config) {
		var once sync.Once
		cfg.IdentityChanged = func() <-chan struct{} {
			next := make(chan struct{})
			once.Do(func() { next = changed })
			return next
		}
	})
	s.serve(place1, protoH2, nil)
	s.serve(place2, protoH1, nil)
	both := func(address string) {
		for _, name := range []string{"a", "b"} {
			s.house(name, func(_ *registry.Entry, b *registry.Backend) { b.PingTimeout = 0 }, healthy(address))
		}
		s.table()
	}
	dial := func(u *Upstream) *watched {
		t.Helper()
		c := must.Get(dialWatched(t.Context(), u.at(place1)))(t)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	want := func(when string, drains bool, list ...*watched) {
		t.Helper()
		synctest.Wait()
		for i, c := range list {
			check.Same(t, drains, len(c.drained) > 0, "%s, connection %d drains", when, i)
		}
	}
	speak := func(when string, http2 bool) {
		t.Helper()
		check.Same(t, [2]bool{http2, http2}, [2]bool{s.up("a").HTTP2(), s.up("b").HTTP2()}, "%s, a and b speak HTTP/2", when)
	}
	both(place1)
	speak("at first", false)
	first := dial(s.via("a"))
	speak("after a dial", true)
	check.Same(t, 1, s.up("a").meter.dials[dialOK].Load()+s.up("b").meter.dials[dialOK].Load(), "dials counted for one connection")

	own := dial(s.up("b"))
	must.Get2(roundTrip(t, s.up("b"), http.MethodGet, ""))(t) // over HTTP/1.1
	must.Run(t, s.Run)
	want("before the rotation", false, first, own)
	close(changed)
	want("after the rotation", true, first, own)
	check.Same(t, 0, s.up("b").meter.connections.Load(), "old connections over HTTP/1.1")

	shared, own := dial(s.via("a")), dial(s.up("b"))
	want("after a new dial", false, shared, own)
	s.house("b", func(_ *registry.Entry, b *registry.Backend) { b.PingTimeout = time.Second })
	s.table()
	want("b has changed", true, own)
	want("b has changed", false, shared)
	left := s.via("a").at(place1)
	delete(s.entries, "a")
	s.table()
	want("a has left", true, shared)
	_, err := dialWatched(t.Context(), left)
	check.Same(t, true, err != nil && len(s.carriers) == 1, "not dialled after the last one left: %v, %d carriers", err, len(s.carriers))

	both(place2)
	_, _, err = Dial(t.Context(), s.via("a").at(place2).forEngine())
	must.Be(t, err != nil, "spoke HTTP/2 with a server that does not")
	speak("of a server without it", false)
}
