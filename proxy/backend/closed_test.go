package backend

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
)

// An Upstream that was closed ignores the endpoints of a table that is applied late.
func TestClosedUpstreamStaysEmpty(t *testing.T) {
	f := newFixture(t, nil)
	u := f.Upstream(f.set(healthy("10.0.0.1:443")))
	if e := u.snapshot(); len(e) != 1 {
		t.Fatalf("%d endpoints", len(e))
	}
	f.generation++
	f.apply(f.generation, nil)
	u.update(&view{}, []registry.Endpoint{healthy("10.0.0.2:443")})
	if _, ok := u.Pick(); ok || len(u.snapshot()) > 1 {
		t.Errorf("it has %d endpoints", len(u.snapshot()))
	}
}

// A request that had chosen a removed endpoint creates no pool for it.
func TestRemovedEndpointHasNoPool(t *testing.T) {
	f := newFixture(t, nil)
	u := f.Upstream(f.set(healthy("10.0.0.1:443")))
	u.mu.Lock()
	e := u.endpoints["10.0.0.1:443"]
	u.mu.Unlock()
	if f.set(healthy("10.0.0.2:443")); e.http1() != nil {
		t.Error("the removed endpoint has a pool")
	}
}

// The engine's retries are counted by the failure that caused them.
func TestRetriesOfTheEngineAreCounted(t *testing.T) {
	f := newFixture(t, nil)
	u := f.Upstream(f.set(healthy("10.0.0.1:443")))
	for after, want := range map[h2.Reason]kind{
		h2.ReasonDial: failDial, h2.ReasonRefused: failRefused, h2.ReasonLost: failLost, h2.ReasonReset: failLost, h2.ReasonEjected: failEjected,
	} {
		before := u.meter.retries[want].Load()
		u.retried(after)
		if n := u.meter.retries[want].Load() - before; n != 1 {
			t.Errorf("after %v: %d counted", after, n)
		}
	}
}
