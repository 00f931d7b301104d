package h2

import (
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Clients that read nothing cannot make the process exceed its limit, nor harm others.
func TestSlowReadersStayWithinBound(t *testing.T) { onDrivers(t, testSlowReaders) }

func testSlowReaders(t *testing.T, driver string) {
	const limit, readers, streams = 4 << 20, 12, 16
	s := &stand{t: t, ended: make(chan Outcome, 10000), unwrapped: driver == "unwrapped"}
	s.backend = newBackend(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for n := 0; n < 1<<20 && r.URL.Path == "/big"; n += len(leanBody) {
			_, _ = w.Write(leanBody)
		}
	}))
	plan := forward(endpoint(s.backend.Listener.Addr().String()))
	bound := hold.New(limit)
	s.start(Config{portable: driver != "loop", Memory: bound, Decide: func(*ConnInfo, *Head, func(Plan)) (Plan, bool) { return plan, true }})
	for range readers {
		c := dialLean(t, s.addr)
		defer c.Close()
		for range streams { // 12 × 16 × 256 KiB: twelve times the limit
			if c.get("/big") != nil || c.w.Flush() != nil {
				break
			}
		}
	}
	got := func() {
		res := s.do("GET", "/", nil)
		_ = s.read(res)
		if res.StatusCode != http.StatusOK {
			t.Fatalf("another client got %d", res.StatusCode)
		}
	}
	must.Soon(t, 20*time.Second, "refusals, and nothing above the bound", func() bool { // the input of one tick may exceed the limit
		got()
		return total(t, "fairlead_memory_refused_total", bound.Metrics()...) > 0 && bound.Over() <= 0
	})
	for end := time.Now().Add(4 * engine.TickEvery); time.Now().Before(end); {
		got()
	}
	if bound.Over() > limit/4 {
		t.Errorf("%d bytes above the limit are held", bound.Over())
	}
}

// total adds up a metric's values.
func total(t *testing.T, name string, of ...prometheus.Collector) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(of...)
	n := 0.0
	for _, f := range must.Get(reg.Gather())(t) {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				n += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return n
}
