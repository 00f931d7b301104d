package health

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestFollowsTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, h, _ := single(t)
		first := b.feed.entries[0]

		pass(time.Second)
		b.feed.set()
		synctest.Wait()
		check.Same(t, 0, h.open(), "connections open to a removed endpoint")
		before := b.dials()
		pass(time.Minute)
		check.Same(t, 0, b.dials()-before, "probes of a removed endpoint")

		// First the same entry again, then one with another backend (a new CA): each is probed at
		// once.
		b.feed.set(first)
		synctest.Wait()
		if last := b.notes.of(first); last.at != time.Now() {
			t.Errorf("an endpoint that is back is not probed at once: %+v", last)
		}
		for range 2 {
			next := *first
			again := *first.Backend
			next.Backend = &again
			b.feed.set(&next)
			synctest.Wait()
			if last := b.notes.of(first); last.at != time.Now() || last.Backend != &again {
				t.Errorf("a new backend is not reported at once: %+v", last)
			}
		}
	})
}

func TestWhatIsNotProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := entry(at)
		local.Backend = nil
		protected := entry(at)
		protected.Verdict.Reason = registry.ReasonProtectedGroup
		b := newBench(t, newAuthority(serverName), []*registry.Entry{local, protected})
		b.run(t)
		pass(time.Minute)
		check.Same(t, 0, b.dials(), "probes")
	})
}

func TestNewIntervalAppliesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := single(t)
		slower, faster := *b.feed.entries[0], *b.feed.entries[0]
		slower.Policy.ProbeInterval = time.Hour
		faster.Policy.ProbeInterval = time.Second
		b.feed.set(&slower)
		pass(time.Minute)
		before := b.dials()
		b.feed.set(&faster)
		pass(time.Minute)
		if n := b.dials() - before; n < 50 || n > 76 {
			t.Errorf("%d probes in a minute of one a second", n)
		}
	})
}

// A table without an earlier report (the endpoint was absent from a table that the prober skipped)
// gets it again, once. So does one that carried an older verdict through such tables (the
// APIService had another backend there, and reports about this one were dropped).
func TestCorrectsATable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := single(t)
		known := registry.Endpoint{Address: at, Health: registry.Healthy}
		for _, tc := range []struct {
			name     string
			endpoint registry.Endpoint
			want     int
		}{
			{"as reported", known, 0},
			{"forgotten", registry.Endpoint{Address: at}, 1},
			{"as reported again", known, 0},
			{"another health", registry.Endpoint{Address: at, Health: registry.Unhealthy}, 1},
			{"and back", known, 0},
			{"slow", registry.Endpoint{Address: at, Health: registry.Healthy, Slow: true}, 1},
			{"no longer", known, 0},
		} {
			pass(5 * time.Second)
			before := len(b.notes.all())
			next := *b.feed.entries[0]
			next.Endpoints = []registry.Endpoint{tc.endpoint}
			b.feed.set(&next)
			for range 2 { // at once, and no more later
				synctest.Wait()
				if n, last := len(b.notes.all())-before, b.notes.of(&next); n != tc.want || last.Health != registry.Healthy || last.Slow {
					t.Errorf("%s: %d reports, want %d; the last is %+v", tc.name, n, tc.want, last)
				}
				pass(time.Minute)
			}
		}
	})
}

func TestSeriesComeAndGoWithTheObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := prometheus.NewPedanticRegistry()
		ca := newAuthority(serverName)
		b := newBench(t, ca, []*registry.Entry{entry(at, "10.0.0.2:443")}, func(c *Config) { c.Metrics = r })
		b.cable.host(at).serve(t, ca, newBackend().ServeHTTP)
		b.run(t)
		pass(350 * time.Millisecond) // four probes of the unreachable endpoint
		want := `
			# HELP fairlead_endpoint_healthy 1 if the endpoint is healthy, 0 if it is not or has not been found out yet.
			# TYPE fairlead_endpoint_healthy gauge
			fairlead_endpoint_healthy{endpoint="10.0.0.1:443",name="v1beta1.metrics.k8s.io"} 1
			fairlead_endpoint_healthy{endpoint="10.0.0.2:443",name="v1beta1.metrics.k8s.io"} 0
			# HELP fairlead_probe_total Probes of backend endpoints, by APIService and result (passed, failed).
			# TYPE fairlead_probe_total counter
			fairlead_probe_total{name="v1beta1.metrics.k8s.io",result="failed"} 4
			fairlead_probe_total{name="v1beta1.metrics.k8s.io",result="passed"} 1
		`
		must.Do(t, testutil.GatherAndCompare(r, strings.NewReader(want), "fairlead_endpoint_healthy", "fairlead_probe_total"))
		alone := *b.feed.entries[0]
		alone.Endpoints = nil
		for _, step := range []struct {
			entries []*registry.Entry
			want    int
		}{{[]*registry.Entry{&alone}, 2}, {nil, 0}} {
			b.feed.set(step.entries...)
			pass(time.Second)
			n, err := testutil.GatherAndCount(r, "fairlead_endpoint_healthy", "fairlead_probe_total")
			if err != nil || n != step.want {
				t.Errorf("%d series, want %d (%v)", n, step.want, err)
			}
		}
	})
}
