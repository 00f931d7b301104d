package backend

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// A rolling update of three endpoints under load fails no read, and cuts no watch. HTTP/1.1 does
// not tell whether a write was read by a server that closes its connection.
func TestRollingUpdate(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Watch") != "" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			select { // a watch ends when its server says so
			case <-r.Context().Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	servers := make([]*server, 3)
	f := newFixture(t, nil)
	var current atomic.Pointer[registry.Entry]
	publish := func(leaving *server) {
		var list []registry.Endpoint
		for _, s := range servers {
			list = append(list, healthy(s.address))
		}
		if leaving != nil {
			list = append(list, registry.Endpoint{Address: leaving.address, Health: registry.Healthy, Terminating: true})
		}
		current.Store(f.set(list...))
	}
	for i := range servers {
		servers[i] = newServer(t, protoH2, handler)
	}
	publish(nil)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var total atomic.Int64
	var wg sync.WaitGroup
	load := func() {
		for i := 0; ctx.Err() == nil; i++ {
			req, watch := newRequest(t, http.MethodGet, ""), i%2 == 1
			if watch {
				req.Header.Set("Watch", "true")
			}
			res, err := f.RoundTrip(current.Load(), req, watch)
			if err != nil {
				t.Errorf("%s failed: %v", req.Method, err)
				continue
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				t.Errorf("%s was cut: %v", req.Method, err)
			}
			_ = res.Body.Close()
			total.Add(1)
		}
	}
	for range 8 {
		wg.Go(func() { load() })
	}
	for i := range servers {
		old := servers[i]
		servers[i] = newServer(t, protoH2, handler)
		publish(old)
		// A process that is told to end finishes its requests, and may be gone before the table
		// says so.
		if err := old.Config.Shutdown(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		publish(nil)
		seen := total.Load()
		waitFor(t, "traffic to go on", func() bool { return total.Load() > seen+50 })
	}
	stop()
	wg.Wait()
	t.Logf("%d requests", total.Load())
}
