package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// A rolling update of three endpoints under load fails no request, and executes no write twice.
func TestRollingUpdate(t *testing.T) {
	var mu sync.Mutex
	executed := make(map[string]int)
	handler := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			mu.Lock()
			executed[string(b)]++
			mu.Unlock()
		case r.Header.Get("Watch") != "":
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
		servers[i] = newServer(t, h2, handler)
	}
	publish(nil)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writes, total atomic.Int64
	var wg sync.WaitGroup
	load := func(worker int) {
		for i := 0; ctx.Err() == nil; i++ {
			var req *http.Request
			switch i % 3 {
			case 0:
				req = newRequest(t, http.MethodPost, fmt.Sprint(worker, " ", i))
				writes.Add(1)
			case 1:
				req = newRequest(t, http.MethodGet, "")
			default:
				req = newRequest(t, http.MethodGet, "")
				req.Header.Set("Watch", "true")
			}
			res, err := f.RoundTrip(current.Load(), req, i%3 == 2)
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
	for worker := range 8 {
		wg.Go(func() { load(worker) })
	}
	for i := range servers {
		old := servers[i]
		servers[i] = newServer(t, h2, handler)
		publish(old)
		// A process that is told to end finishes its requests, and may be gone before the table says so.
		if err := old.Config.Shutdown(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		publish(nil)
		seen := total.Load()
		waitFor(t, "traffic to go on", func() bool { return total.Load() > seen+50 })
	}
	stop()
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	if int64(len(executed)) != writes.Load() {
		t.Errorf("%d writes, %d were executed", writes.Load(), len(executed))
	}
	for id, n := range executed {
		if n != 1 {
			t.Errorf("write %q was executed %d times", id, n)
		}
	}
	t.Logf("%d requests", total.Load())
}
