//go:build e2e

package faults

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
)

// testIsolation floods a backend that answers after half a minute, and looks at what the users of others feel.
//
// Windows with and without the flood take turns within one run, and the times of each kind are pooled: what the machine does beside falls on both alike. The
// 99th percentile of a few hundred requests is one request's luck; while the bound is not met, more windows are measured, up to a limit.
func testIsolation(t *testing.T, d *door) {
	const (
		flood  = 600 // half as many again as a backend may have in flight
		least  = 4   // pairs of windows
		most   = 14
		window = time.Second
		bound  = 1.2
	)
	slow, other := d.w.newBackend(), d.w.newBackend()
	crawling := slow.serve(t, 1, extension.Config{Record: -1, MaxStreams: 1000})[0]
	quick := other.serve(t, 2, extension.Config{Record: -1})
	slow.register(t, crawling.Addr())
	other.register(t, quick[0].Addr(), quick[1].Addr())
	slow.await(t, d)
	other.await(t, d)
	if err := crawling.Set(extension.Fault{Kind: extension.Slow, Delay: 30 * time.Second, Path: slow.widgets()}); err != nil {
		t.Fatal(err)
	}
	clients := d.w.clients(6)
	measure := func() []shot {
		l := (&load{interval: 5 * time.Millisecond, client: d.w.clients(2), make: d.reads(other)}).start(t)
		pause(t, window)
		return l.stop()
	}
	measure() // connections, caches
	var calm, flooded []shot
	for pair := range most {
		calm = append(calm, measure()...)
		end := startFlood(t, d, slow, clients, flood)
		eventually(t, longest, "flooded", func() bool { return crawling.Stats().Requests > 0 && slow.inFlight(d) >= 400 })
		flooded = append(flooded, measure()...)
		end()
		a, b := percentile(calm, 0.99), percentile(flooded, 0.99)
		t.Logf("p99 after %d pairs: %s without, %s with the flood", pair+1, a.Round(time.Microsecond), b.Round(time.Microsecond))
		if pair+1 >= least && float64(b) <= bound*float64(a) {
			break
		}
	}
	mustSucceed(t, slices.Concat(calm, flooded), 0)
	a, b := percentile(calm, 0.99), percentile(flooded, 0.99)
	if float64(b) > bound*float64(a) {
		t.Errorf("p99 %s without and %s with the flood: more than %.1f times", a, b, bound)
	}
}

// startFlood keeps n requests to b under way until end is called. Who is told to come back later does.
func startFlood(t *testing.T, d *door, b *backend, clients []*http.Client, n int) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var flying sync.WaitGroup
	for i := range n {
		flying.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.Endpoint.URL+b.widgets()+"/widget-001", nil)
				if err != nil {
					return
				}
				res, err := clients[i%len(clients)].Do(req)
				if err != nil {
					continue
				}
				res.Body.Close()
				if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") != "1" {
					t.Errorf("flooding: %s, Retry-After %q, want 429 and 1", res.Status, res.Header.Get("Retry-After"))
					return
				}
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
		})
	}
	return func() { cancel(); flying.Wait() }
}
