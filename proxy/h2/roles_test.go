package h2

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func startReverseProxy(backend string) string {
	target := &url.URL{Scheme: "https", Host: backend}
	pool := &slicePool{}
	rp := &httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(target) },
		BufferPool: pool,
		Transport: &http.Transport{
			ForceAttemptHTTP2: true, DisableCompression: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, DynamicRecordSizingDisabled: true},
		},
		FlushInterval: -1,
	}
	front := httptest.NewUnstartedServer(rp)
	front.EnableHTTP2 = true
	front.TLS = &tls.Config{DynamicRecordSizingDisabled: true}
	front.StartTLS()
	return front.Listener.Addr().String()
}

type slicePool struct{ sync.Pool }

func (p *slicePool) Get() []byte {
	if b, ok := p.Pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *slicePool) Put(b []byte) { p.Pool.Put(&b) }

// startLane starts an engine with a plan as every request has: a field removed, one set, a
// deadline, an outcome, metrics.
func startLane(kind, backend string) string {
	plan := forward(endpoint(backend))
	plan.Remove = func(name string) bool { return name == "authorization" }
	plan.Set = append(plan.Set, field("x-remote-user", "alice"), field("x-remote-group", "devs"))
	plan.Deadline = time.Minute
	plan.Retries = 2
	plan.Done = func(Outcome) {}
	watch := plan
	watch.Deadline, watch.LongRunning = 0, true
	s := New(Config{portable: kind == "portable", Metrics: prometheus.NewRegistry(), Dial: dial, Decide: func(_ *ConnInfo, h *Head, _ func(Plan)) (Plan, bool) {
		if h.Path == "/watch" {
			return watch, true
		}
		return plan, true
	}})
	go func() { _ = s.Run(context.Background()) }()
	front := httptest.NewUnstartedServer(http.NotFoundHandler())
	front.Listener = s.Listener(front.Listener)
	front.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": s.Serve}
	front.TLS = &tls.Config{NextProtos: []string{"h2"}, DynamicRecordSizingDisabled: true}
	front.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	front.StartTLS()
	return front.Listener.Addr().String()
}
