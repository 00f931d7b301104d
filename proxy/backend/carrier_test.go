package backend

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// APIServices with one Backend use the same connections, and no others do. With a backend without
// HTTP/2 nothing is shared.
func TestWhoShares(t *testing.T) {
	s := newStreet(t, nil)
	s.house("a", nil, healthy(place1))
	s.house("b", nil, healthy(place1))
	s.house("c", func(_ *registry.Entry, b *registry.Backend) { b.Owner = "c" }, healthy(place1))
	s.house("d", func(_ *registry.Entry, b *registry.Backend) { b.HTTP1 = true }, healthy(place1))
	s.table()
	a, c := s.via("a"), s.via("c")
	if a == nil || a != s.via("b") || c == nil || c == a || s.via("d") != nil {
		t.Errorf("a uses %p, b %p, c %p, d %p", a, s.via("b"), c, s.via("d"))
	}
	for name, of := range map[string]*Upstream{"": a, "c": c} {
		asked := ""
		s.cfg.TLS = func(apiService string, _ *registry.Backend) (*tls.Config, error) {
			asked = apiService
			return nil, errLost
		}
		if _, _ = of.target.tls(); asked != name {
			t.Errorf("TLS was called for %q, want %q", asked, name)
		}
	}
}

// A new endpoint is reached over shared connections from its first request on, and a removed one is
// forgotten.
func TestSharedEndpointsFollowTheTable(t *testing.T) {
	s := newStreet(t, nil)
	s.house("a", nil, healthy(place1))
	s.house("b", nil, healthy(place1))
	s.table()
	c := s.via("a")
	for _, name := range []string{"a", "b"} {
		s.house(name, nil, healthy(place2))
	}
	s.table()
	if s.via("a") != c || s.via("b") != c {
		t.Error("the new endpoint is not reached over the shared connections")
	}
	if known := c.snapshot(); len(known) != 1 || known[0].address != place2 {
		t.Errorf("the carrier has %d endpoints", len(known))
	}
}

// After an APIService changes its target or its trust, its requests no longer use the shared
// connections. Those of its neighbours do.
func TestRetarget(t *testing.T) {
	for name, change := range map[string]func(*registry.Entry, *registry.Backend){
		"port":         func(_ *registry.Entry, b *registry.Backend) { b.Port = 8443 },
		"service":      func(_ *registry.Entry, b *registry.Backend) { b.Service = "other" },
		"bundle":       func(_ *registry.Entry, b *registry.Backend) { b.CABundle = "other" },
		"server name":  func(_ *registry.Entry, b *registry.Backend) { b.ServerName = "other" },
		"ping timeout": func(_ *registry.Entry, b *registry.Backend) { b.PingTimeout = time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStreet(t, nil)
			for _, name := range []string{"a", "b", "c"} {
				s.house(name, nil, healthy(place1))
			}
			s.table()
			c := s.via("a")
			s.house("a", change)
			s.table()
			if got := s.via("a"); got == nil || got == c {
				t.Errorf("uses %p, after it shared %p", got, c)
			}
			if s.via("b") != c || s.via("c") != c {
				t.Error("a neighbour lost its connections")
			}
			s.house("a", func(_ *registry.Entry, b *registry.Backend) { *b = *s.entries["b"].Backend })
			s.table()
			if s.via("a") != c {
				t.Error("does not use its former connections again")
			}
		})
	}
}

// Each APIService has its own limits: one at its limit takes no places from its neighbours.
func TestLimitsOfSharers(t *testing.T) {
	s := newStreet(t, nil)
	for name, n := range map[string]int{"a": 1, "b": 2} {
		s.house(name, func(e *registry.Entry, _ *registry.Backend) { e.Policy.MaxInFlight, e.Policy.MaxLongRunning = n, n }, healthy(place1))
	}
	s.table()
	if s.via("a") == nil || s.via("a") != s.via("b") {
		t.Fatal("they share no connections")
	}
	for _, long := range []bool{false, true} {
		for name, want := range map[string]int{"a": 1, "b": 2} {
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
}

// An endpoint's verdict is that of one APIService: another one still uses it, over the same
// connections.
func TestEjectionOfSharers(t *testing.T) {
	s := newStreet(t, nil)
	s.house("a", nil, healthy(place1), healthy(place2))
	s.house("b", nil, healthy(place1), healthy(place2))
	s.table()
	s.house("a", nil, registry.Endpoint{Address: place1, Health: registry.Unhealthy}, healthy(place2))
	s.table()
	used := map[string]map[string]bool{"a": {}, "b": {}}
	for range 100 {
		for name := range used {
			l, _ := s.up(name).Pick()
			used[name][l.Address()] = true
			l.Release()
		}
	}
	if used["a"][place1] || !used["a"][place2] || !used["b"][place1] || !used["b"][place2] {
		t.Errorf("used after a's verdict: %v", used)
	}
	if _, c := s.via("b"), s.via("a"); c == nil || c != s.via("b") {
		t.Error("they share no connections any more")
	}
}

// A failure on an unused connection is signaled for one of its APIServices. The engine signals
// those whose requests fail.
func TestSignalsOfSharers(t *testing.T) {
	var signaled []string
	s := newStreet(t, func(cfg *Config) {
		cfg.Signal = func(name, _ string, _ error) { signaled = append(signaled, name) }
	})
	for _, name := range []string{"a", "b", "c"} {
		s.house(name, nil, healthy(place1))
	}
	s.table()
	c := s.via("a")
	c.target.signal(place1, errLost)
	named := signaled[0]
	delete(s.entries, named)
	s.table()
	c.target.signal(place1, errLost)
	if len(signaled) != 2 || signaled[1] == named {
		t.Errorf("signaled for %v", signaled)
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
			return &Conn{Conn: tls.Client(nil, &tls.Config{ServerName: "x"}), closed: make(chan struct{})}
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
		close(ends.closed)
		time.Sleep(time.Hour)
		synctest.Wait()
		s.mu.Lock()
		guards := len(s.guarded)
		s.mu.Unlock()
		if n := guards; n != 1 || len(ended) != 0 {
			t.Errorf("%d guards, %d ended, while everything is trusted", n, len(ended))
		}
		close(s.lost)
		time.Sleep(watchGrace - time.Millisecond)
		synctest.Wait()
		check.Same(t, 0, len(ended), "connections that ended before their grace")
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(ended) != 1 || <-ended != stays || len(s.guarded) != 0 {
			t.Errorf("%d ended, %d guards", len(ended), len(s.guarded))
		}
	})
}

// If one of two leaves, shared connections stay. They drain when the last one leaves.
func TestLastSharerCloses(t *testing.T) {
	s, well := served(t, nil)
	c, carrier := dialShared(t, s, well.address), s.via("a")
	delete(s.entries, "b")
	s.table()
	if drained(c) || s.via("a") != carrier {
		t.Fatal("drained when one of two left")
	}
	delete(s.entries, "a")
	s.table()
	if !drained(c) || len(s.carriers) != 0 {
		t.Error("not drained when the last one left")
	}
	if _, err := carrier.dialH2(t.Context(), well.address, nil); err == nil {
		t.Error("can be dialled after the last one left")
	}
}

// If an APIService's own connections drain, for example after a policy change, shared ones do not.
func TestDrainOfOneSharer(t *testing.T) {
	s, well := served(t, nil)
	own := must.Get(s.up("b").dialH2(t.Context(), well.address, nil))(t)
	defer own.Close()
	c := dialShared(t, s, well.address)
	s.house("b", func(_ *registry.Entry, b *registry.Backend) { b.PingTimeout = time.Second })
	s.table()
	if !drained(own) || drained(c) {
		t.Error("want only the own connection to drain")
	}
}

// After a rotation of the proxy client certificate, the next requests use it: shared connections
// and others drain.
func TestRotationDrainsShared(t *testing.T) {
	changed := make(chan struct{})
	s, well := served(t, func(cfg *Config) {
		var once sync.Once
		cfg.IdentityChanged = func() <-chan struct{} {
			next := make(chan struct{})
			once.Do(func() { next = changed })
			return next
		}
	})
	own := must.Get(s.up("b").dialH2(t.Context(), well.address, nil))(t)
	defer own.Close()
	c := dialShared(t, s, well.address)
	must.Run(t, s.Run)
	if drained(c) {
		t.Error("drained before the rotation")
	}
	close(changed)
	if !drained(c) || !drained(own) {
		t.Error("not drained by the rotation")
	}
	if next := dialShared(t, s, well.address); drained(next) {
		t.Error("a connection made afterwards is drained")
	}
}

// A dial of a shared connection is counted once. All who share it learn whether the backend speaks
// HTTP/2.
func TestSharersKnowTheProtocol(t *testing.T) {
	s, well := served(t, nil)
	if s.up("a").HTTP2() || s.up("b").HTTP2() {
		t.Error("HTTP/2 without a connection")
	}
	dialShared(t, s, well.address)
	if !s.up("a").HTTP2() || !s.up("b").HTTP2() {
		t.Error("no HTTP/2 after a connection")
	}
	dials := uint64(0)
	for _, name := range []string{"a", "b"} {
		dials += s.up(name).meter.dials[dialOK].Load()
	}
	check.Same(t, 1, dials, "dials counted for one connection")
	old := newServer(t, protoH1, http.NotFound)
	for _, name := range []string{"a", "b"} {
		s.house(name, nil, healthy(old.address))
	}
	s.table()
	if _, err := s.via("a").dialH2(t.Context(), old.address, nil); err == nil {
		t.Fatal("spoke HTTP/2 with a server that does not")
	}
	if s.up("a").HTTP2() || s.up("b").HTTP2() {
		t.Error("still believed to speak HTTP/2")
	}
}
