package backend

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
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
	if len(f.remotes)+len(f.carriers)+entries != 0 {
		t.Errorf("%d upstreams, %d carriers and %d entries are left", len(f.remotes), len(f.carriers), entries)
	}
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
		t.Errorf("%d series are left: %v", n, err)
	}
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
	if n, err := testutil.GatherAndCount(reg, "fairlead_backend_phase_seconds"); err != nil || n < 6 {
		t.Errorf("%d phases, %v", n, err)
	}
}

// A request may have matched a table that is older or newer than the applied one, or chosen an
// endpoint that is removed: neither creates a pool, nor does a table that is applied late.
func TestOtherTables(t *testing.T) {
	f := newFixture(t, nil)
	old := f.set(healthy(place1))
	u := f.Upstream(old)
	chosen := u.endpoints[place1]
	f.set(healthy(place2))
	if chosen.http1() != nil {
		t.Error("the removed endpoint has a pool")
	}
	f.backend = &registry.Backend{Namespace: "ns", Service: "other", Port: 443}
	f.serve(place2, protoH2, nil)
	f.set(healthy(place2))
	if _, _, err := f.do(old, http.MethodPost, ""); err != nil {
		t.Errorf("an entry of an older table: %v", err)
	}
	f.clear()
	if f.Upstream(old) != nil {
		t.Error("a removed entry has an upstream")
	}
	u.update(&view{}, []registry.Endpoint{healthy(place1)})
	if u.take(nil) != nil || len(u.snapshot()) > 1 {
		t.Errorf("a closed upstream has %d endpoints", len(u.snapshot()))
	}
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
		if n := count.Load() - before; n != 1 {
			t.Errorf("after %v: %d counted", after, n)
		}
	}
}
