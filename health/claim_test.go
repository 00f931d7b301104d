package health

import (
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
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

// A lack of our own descriptors is no fault of an endpoint, which may serve over connections that are open.
func TestOwnLackOfDescriptors(t *testing.T) {
	for err, want := range map[error]registry.Health{syscall.EMFILE: registry.Healthy, syscall.ENFILE: registry.Healthy, syscall.ECONNREFUSED: registry.Unhealthy} {
		c := newClaim(newTarget(New(Config{}), key{&registry.Backend{}, "10.0.0.1:443", defaultInterval, false}), &registry.Entry{Name: "v1.g"})
		c.take(finding{})
		for range fall {
			c.take(finding{err: &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", err)}, failures: 1, undialled: true})
		}
		check.Same(t, want, c.report.Health, "after %v", err)
	}
}
