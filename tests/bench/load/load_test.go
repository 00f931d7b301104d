package load

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// serve serves HTTP/2, with a thousand streams per connection.
func serve(t *testing.T, h http.HandlerFunc) Config {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	same := func(int, int) Request { return Request{Path: "/x?y", Token: "t"} }
	return Config{Address: s.Listener.Addr().String(), TLS: s.Client().Transport.(*http.Transport).TLSClientConfig, Connections: 2, Streams: 4, Next: same}
}

func TestLoad(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.RequestURI+" "+r.Header.Get("Authorization")]++
		mu.Unlock()
		_, _ = w.Write(make([]byte, 100_000)) // more than a frame, and many are more than a window
	})
	cfg.Size = 100_000
	l := must.Get(Start(t.Context(), cfg))(t)
	must.Do(t, l.WaitDone(t.Context(), 500))
	took := l.Snapshot().Took
	must.Do(t, l.Close())
	if len(took) < 500 || took[0] <= 0 || took[0] > took[len(took)-1] {
		t.Errorf("%d latencies", len(took))
	}
	mu.Lock()
	defer mu.Unlock()
	check.Same(t, true, seen["/x?y Bearer t"] >= 500 && len(seen) == 1, "the server received %v", seen)
}

// Every unexpected answer is a fault.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		answer     http.HandlerFunc
	}{
		{"status", "status 429", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }},
		{"size", "3 bytes, not 7", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("abc")) }},
		{"reset", "was reset", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := serve(t, tc.answer)
			cfg.Size = 7
			l := must.Get(Start(t.Context(), cfg))(t)
			check.Fault(t, tc.want, l.WaitDone(t.Context(), 1), "waiting")
		})
	}
}

func TestRate(t *testing.T) {
	cfg := serve(t, func(http.ResponseWriter, *http.Request) {})
	cfg.Rate, cfg.Streams = 500, 200
	began := time.Now()
	l := must.Get(Start(t.Context(), cfg))(t)
	must.Do(t, l.WaitDone(t.Context(), 100))
	// A hundred take 200 ms. A busy machine may need longer, but never much less: a Poisson
	// process's deviation is a tenth.
	check.Same(t, true, time.Since(began) >= 100*time.Millisecond, "100 requests at 500/s took %v", time.Since(began))
	must.Do(t, l.Close())
}

// Watches stay open, and their frames count.
func TestWatch(t *testing.T) {
	cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			return
		}
		_, _ = w.Write([]byte("event\n"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	cfg.Next = nil
	l := must.Get(Start(t.Context(), cfg))(t)
	l.Open(1, Request{Path: "/first"})
	must.Do(t, l.WaitDone(t.Context(), 2))
	l.Open(4, Request{Path: "/", Watch: true})
	must.Do(t, l.WaitDone(t.Context(), 10))
	check.Same(t, 10, l.Snapshot().Done, "done: 2 answers and 8 events")
	must.Do(t, l.Close())
}
