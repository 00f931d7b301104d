package health

import (
	"strconv"
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
		if last := b.notes.last(at); last.at != time.Now() {
			t.Errorf("an endpoint that is back is not probed at once: %+v", last)
		}
		for range 2 {
			next := *first
			again := *first.Backend
			next.Backend = &again
			b.feed.set(&next)
			synctest.Wait()
			if last := b.notes.last(at); last.at != time.Now() || last.Backend != &again {
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
		b := startBench(t, newAuthority(serverName), []*registry.Entry{local, protected})
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
// gets it again.
func TestTellsAForgetfulTableAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := single(t)
		remembering := *b.feed.entries[0]
		remembering.Endpoints = []registry.Endpoint{{Address: at, Health: registry.Healthy}}
		pass(5 * time.Second)
		b.feed.set(&remembering)
		pass(time.Minute)
		before := len(b.notes.all())
		forgetting := *b.feed.entries[0]
		forgetting.Endpoints = []registry.Endpoint{{Address: at}}
		b.feed.set(&forgetting)
		synctest.Wait()
		check.Same(t, 1, len(b.notes.all())-before, "reports")
		before = len(b.notes.all())
		pass(time.Minute)
		check.Same(t, 0, len(b.notes.all())-before, "more reports")
	})
}

// A table that carried an older verdict through tables that the prober skipped (the APIService had
// another backend there, and reports about this one were dropped) gets the last one again, once.
func TestCorrectsAnOutdatedTable(t *testing.T) {
	for name, outdated := range map[string]registry.Endpoint{
		"health": {Address: at, Health: registry.Unhealthy},
		"slow":   {Address: at, Health: registry.Healthy, Slow: true},
	} {
		bubble(t, name, func(t *testing.T) {
			b, _, _ := single(t)
			pass(5 * time.Second)
			for _, tc := range []struct {
				endpoint registry.Endpoint
				want     int
			}{
				{outdated, 1},
				{registry.Endpoint{Address: at, Health: registry.Healthy}, 0},
			} {
				before := len(b.notes.all())
				next := *b.feed.entries[0]
				next.Endpoints = []registry.Endpoint{tc.endpoint}
				b.feed.set(&next)
				synctest.Wait()
				if n, last := len(b.notes.all())-before, b.notes.last(at); n != tc.want || last.Health != registry.Healthy || last.Slow {
					t.Errorf("%d reports after %+v, want %d; the last is %+v", n, tc.endpoint, tc.want, last)
				}
			}
		})
	}
}

func TestSeriesComeAndGoWithTheObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := prometheus.NewPedanticRegistry()
		b, _ := served(t, []*registry.Entry{entry(at, "10.0.0.2:443")}, newBackend().ServeHTTP, func(c *Config) { c.Metrics = r })
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

// The bubble fails if a goroutine is left at its end. The test counts connections.
func TestNothingIsLeftAfterAThousandChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(serverName)
		b := startBench(t, ca, nil)
		hosts := make([]*host, 4)
		addresses := make([]string, 4)
		for i := range hosts {
			addresses[i] = "10.0.0." + strconv.Itoa(i+1) + ":443"
			hosts[i] = b.cable.host(addresses[i])
			hosts[i].serve(t, ca, newBackend().ServeHTTP)
		}
		b.run(t)
		for i := range 1000 {
			var entries []*registry.Entry
			for j := range i % 3 {
				e := entry(addresses[i%4], addresses[(i+j+1)%4])
				e.Name += strconv.Itoa(j)
				entries = append(entries, e)
			}
			b.feed.set(entries...)
			time.Sleep(time.Duration(i%7) * 100 * time.Millisecond)
			if i%50 == 0 {
				hosts[i%4].set(refusing)
			}
			if i%50 == 10 {
				hosts[(i-10)%4].set(listening)
			}
		}
		b.feed.set()
		b.wantNothing(t, hosts...)
	})
}
