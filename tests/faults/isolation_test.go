//go:build e2e

package faults

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// testIsolation floods a backend that answers after half a minute, and measures other backends'
// users.
//
// Windows with and without the flood alternate, so that other load on the machine affects both
// alike. It compares medians of the windows' 99th percentiles: one stall of the machine affects one
// window.
func testIsolation(t *testing.T, d *door) {
	const (
		flood   = 500 // a quarter more than a backend's limit
		lent    = 388 // one user's share of those 400: a 32nd is for others
		windows = 9   // of each kind
		window  = time.Second
		bound   = 5 * time.Millisecond // a quarter of the backend's delay
	)
	slow, crawling := d.backend(t, 1, extension.Config{Record: -1, MaxStreams: 1000})
	other, quick := d.backend(t, 2, extension.Config{Record: -1})
	must.Do(t, crawling[0].Set(extension.Fault{Kind: extension.Slow, Delay: 30 * time.Second, Path: slow.widgets()}))
	// The others are slow, too, like real ones. Otherwise the machine's scheduler would dominate.
	for _, s := range quick {
		must.Do(t, s.Set(extension.Fault{Kind: extension.Slow, Delay: 20 * time.Millisecond, Path: other.widgets()}))
	}
	clients, measuring := d.w.clients(6), d.w.clients(2)
	measure := func() []volley.Shot {
		l := (&volley.Load{Every: 5 * time.Millisecond, Clients: measuring, Make: d.reads(other)}).Start(t)
		suite.Pause(t, window)
		return l.Stop()
	}
	measure() // fills connection pools and caches
	var all []volley.Shot
	var calm, flooded []time.Duration // p99 of each window
	measured := func(to *[]time.Duration) {
		shots := measure()
		all = append(all, shots...)
		*to = append(*to, volley.Percentile(shots, 0.99))
	}
	for range windows {
		measured(&calm)
		end := startFlood(t, d, slow, clients, flood)
		eventually(t, longest, "flooded", func() bool { return slow.inFlight(d) >= lent })
		suite.Pause(t, 500*time.Millisecond) // the flood's handshakes are not measured
		measured(&flooded)
		end()
	}
	mustSucceed(t, all, 0)
	t.Logf("p99 of %d windows each: median %s without, %s with the flood", len(calm), median(calm), median(flooded))
	if median(flooded)-median(calm) > bound {
		t.Errorf("p99 %v without and %v with the flood: more than %s later", calm, flooded, bound)
	}
}

func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

// startFlood keeps n requests to b running until end is called. Refused clients retry.
func startFlood(t *testing.T, d *door, b *backend, clients []*http.Client, n int) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var flying sync.WaitGroup
	for i := range n {
		flying.Go(func() {
			for ctx.Err() == nil {
				got, err := ask.Do(ctx, clients[i%len(clients)], http.MethodGet, d.Endpoint.URL+b.widgets()+"/widget-001", nil, "")
				if err != nil {
					continue
				}
				if got.Code != http.StatusTooManyRequests || got.Header.Get("Retry-After") != "1" {
					t.Errorf("flooding: %d, Retry-After %q, want 429 and 1", got.Code, got.Header.Get("Retry-After"))
					return
				}
				select {
				case <-time.After(time.Second + rand.N(2*time.Second)): // clients do not retry all at once
				case <-ctx.Done():
				}
			}
		})
	}
	return func() { cancel(); flying.Wait() }
}
