package h2

import (
	"errors"
	"flag"
	"fmt"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

var watchCount = flag.Int("watches", 2000, "watches that BenchmarkIdleWatches opens, 250 on a connection")

// BenchmarkIdleWatches opens -watches watches, sends each one event, and shows their cost: resident
// memory, and CPU per event.
func BenchmarkIdleWatches(b *testing.B) {
	backend := startPeer(b, "backend")
	for _, kind := range []string{"rp", "portable", "loop"} {
		b.Run(kind, func(b *testing.B) {
			p := startPeer(b, kind+"="+backend.addr)
			conns := dialAll(b, p.addr, (*watchCount+249)/250)
			trigger := dialLean(b, backend.addr)
			b.Cleanup(func() { _ = trigger.Close() })
			for _, c := range conns {
				must.Do(b, c.run("/small", 20, 10, 1024))
			}
			before := p.usage(b, "gc")
			each := *watchCount / len(conns)
			for _, c := range conns {
				for range each {
					must.Do(b, c.get("/watch"))
				}
				must.Do(b, errors.Join(c.w.Flush(), c.events(each)))
			}
			open := p.usage(b, "gc")
			for b.Loop() {
				must.Do(b, trigger.run("/fire", 1, 1, 2))
				for _, c := range conns {
					must.Do(b, c.events(each))
				}
			}
			fired := p.usage(b, "gc")
			n := float64(each * len(conns))
			b.ReportMetric(float64(fired.RSS)/(1<<20), "MiB")
			b.ReportMetric(float64(fired.RSS-before.RSS)/n/1024, "KiB/watch")
			b.ReportMetric(float64(fired.CPU-open.CPU)/n/float64(b.N)/1000, "µs/event")
		})
	}
}

// events reads n DATA frames.
func (l *leanClient) events(n int) error {
	for got := 0; got < n; {
		f, err := l.fr.ReadFrame()
		if err != nil {
			return fmt.Errorf("after %d of %d events: %w", got, n, err)
		}
		if err := errors.Join(l.control(f), l.w.Flush()); err != nil {
			return err
		}
		if isData(f) {
			got++
		}
	}
	return nil
}
