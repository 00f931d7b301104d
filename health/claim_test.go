package health

import (
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// An endpoint is reported before a line tells it: while the log is blocked, nobody would learn that it is down.
func TestReportsBeforeItLogs(t *testing.T) {
	var log logbook.Book
	p := New(Config{
		Report: func(registry.Report) { check.Same(t, "", log.String(), "lines before the report") },
		Sinks:  metric.Sinks{Logger: slog.New(slog.NewTextHandler(&log, nil))},
	})
	c := newClaim(newTarget(p, key{&registry.Backend{}, "10.0.0.1:443", defaultInterval, false}), &registry.Entry{Name: "v1.g"})
	c.report.Health = registry.Unhealthy
	c.sendReport()
	check.Has(t, log.String(), "endpoint is unhealthy")
}

// What flaps ten times a second has few lines, with the number of those that it lacks, and later its last state.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logbook.Book
		p := New(Config{Report: func(registry.Report) {}, Sinks: metric.Sinks{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
		c := newClaim(newTarget(p, key{&registry.Backend{}, "10.0.0.1:443", defaultInterval, false}), &registry.Entry{Name: "v1.g"})
		for i := range 600 {
			c.report.Health = registry.Healthy + registry.Health(i%2)
			c.sendReport()
			time.Sleep(100 * time.Millisecond)
		}
		c.sendReport()
		check.Has(t, log.String(), "unsaid=96", "endpoint is unhealthy")
		check.Same(t, 10, strings.Count(log.String(), "\n"), "lines of a minute:\n%s", &log)
	})
}

// A lack of our own descriptors is no fault of an endpoint, which may serve over connections that are open.
func TestOwnLackOfDescriptors(t *testing.T) {
	unresolved := &net.DNSError{Err: "dial udp 10.96.0.10:53: socket: too many open files", Name: "a.example.com"} // as net makes it
	for err, want := range map[error]registry.Health{syscall.EMFILE: registry.Healthy, syscall.ENFILE: registry.Healthy, unresolved: registry.Healthy,
		syscall.ECONNREFUSED: registry.Unhealthy, &net.DNSError{Err: "no such host"}: registry.Unhealthy} {
		c := newClaim(newTarget(New(Config{}), key{&registry.Backend{}, "10.0.0.1:443", defaultInterval, false}), &registry.Entry{Name: "v1.g"})
		c.take(finding{})
		for range fall {
			c.take(finding{err: &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", err)}, failures: 1, undialled: true})
		}
		check.Same(t, want, c.report.Health, "after %v", err)
	}
}

func sorted(values ...time.Duration) []time.Duration { return slices.Sorted(slices.Values(values)) }

// Whoever writes the EndpointSlices of a Service decides how many latencies are compared. When all
// APIServices leave, as at the end of the process, none costs more than if it were alone.
func TestInProportion(t *testing.T) {
	prober := New(Config{})
	proportion.Check(t, proportion.Row{Name: "endpoints", N: 200, Of: func(n int) (int, func() any) {
		all := peers{}
		for i := range n {
			k := key{&registry.Backend{}, strconv.Itoa(i), defaultInterval, false}
			all[k.address] = newClaim(newTarget(prober, k), &registry.Entry{Name: "v1.g"})
			all[k.address].healthy.Store(true)
		}
		return 64 * n, func() any {
			for _, c := range all {
				c.latency.probed(time.Duration(len(c.target.key.address)) * time.Millisecond)
			}
			judge(time.Now(), all)
			return nil // it keeps nothing
		}
	}}, proportion.Row{Name: "APIServices that leave", N: 500, Of: func(n int) (int, func() any) {
		return 64 * n, func() any {
			s := &set{prober: New(Config{})}
			for i := range n {
				s.prober.metrics.probes.WithLabelValues(strconv.Itoa(i), "passed")
				s.prober.metrics.probes.WithLabelValues(strconv.Itoa(i), "failed")
			}
			for i := range n {
				s.leave(strconv.Itoa(i))
			}
			return nil
		}
	}})
}

// At most half of the endpoints are slow: the others get their requests, and may become slow by that.
func TestHalfAreNeverSlow(t *testing.T) {
	for most, latencies := range map[int][]time.Duration{1: {1, 100, 100}, 2: {1, 1, 100, 100, 100}} {
		all := peers{}
		for i, l := range latencies {
			k := key{&registry.Backend{}, strings.Repeat("a", i), defaultInterval, false}
			all[k.address] = newClaim(newTarget(New(Config{}), k), &registry.Entry{Name: "v1.g"})
			all[k.address].healthy.Store(true)
			all[k.address].latency.probe = l * time.Millisecond
		}
		start, slow := time.Now(), 0
		for s := range 30 {
			for _, c := range all {
				c.latency.probed(c.latency.probe)
			}
			judge(start.Add(time.Duration(s)*time.Second), all)
		}
		for _, c := range all {
			slow += int(metric.Number(c.latency.slow.Load()))
		}
		check.Same(t, most, slow, "slow ones of %v", latencies)
	}
}
