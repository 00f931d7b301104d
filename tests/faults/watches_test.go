//go:build e2e

package faults

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/extension"
)

// testWatches opens a thousand watches and counts them per endpoint.
func testWatches(t *testing.T, d *door) {
	const watches, clients = 1000, 20 // 50 per connection, like many clients
	b, servers := d.backend(t, 3, extension.Config{Record: -1})
	ctx, cancel := context.WithCancel(t.Context())
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	for _, c := range d.w.clients(clients) {
		open.Go(func() {
			for range watches / clients {
				res, err := ask.Open(ctx, c, d.Endpoint.URL+b.widgets()+"?watch=1&resourceVersion=1", nil)
				if err != nil {
					t.Errorf("opening a watch: %v", err)
					return
				}
				defer res.Body.Close()
			}
			<-ctx.Done()
		})
	}
	var at [3]int64
	eventually(t, longest, "all watches are open", func() bool {
		sum := int64(0)
		for i, s := range servers {
			at[i] = s.Stats().Watchers
			sum += at[i]
		}
		return sum == watches
	})
	t.Logf("watches per endpoint: %v", at)
	for _, n := range at {
		if n < watches*9/30 || n > watches*11/30 {
			t.Errorf("watches per endpoint: %v, want each within 10 %% of a third", at)
		}
	}
	cancel()
	eventually(t, 5*time.Second, "all watches have ended at the backend", func() bool {
		return servers[0].Stats().Watchers+servers[1].Stats().Watchers+servers[2].Stats().Watchers == 0
	})
}
