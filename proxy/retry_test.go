package proxy

import (
	"crypto/x509"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Only reads that end may be sent again after a backend got them; proxy/h2/engine and proxy/backend
// test how. Methods are case-sensitive (RFC 9110 §9.1): what only looks like GET is not known to be
// safe. What a pod, or a cluster, answers through a backend comes over connections of its own: it
// may end them, and must not end another user's watch (proxy/h2/engine.TestApart).
func TestPlanOfARequest(t *testing.T) {
	w := newWorld(t, worldConfig{})
	for line, want := range map[string]struct{ again, apart bool }{
		"GET " + remoteGV + "/widgets": {true, false}, "HEAD " + remoteGV + "/widgets": {true, false}, "GET " + remoteGV + "/widgets?watch=1": {false, false},
		"gET " + remoteGV: {false, false}, "OPTIONS " + remoteGV: {false, false}, "POST " + remoteGV + "/widgets": {false, false}, "DELETE " + remoteGV + "/widgets/a": {false, false},
		"GET " + remoteGV + "/widgets/a/proxy": {false, true}, "GET /api/v1/namespaces/x/pods/p/proxy/": {false, true}, "GET /api/v1/proxy/namespaces/x/pods/p/": {false, true}, "GET /api/v1/pods": {true, false},
	} {
		h := asBob("", "")
		h.Method, h.Path, _ = strings.Cut(line, " ")
		h.Path, h.RawQuery, _ = strings.Cut(h.Path, "?")
		x := &exchange{p: w.proxy, head: h}
		x.decision, _ = w.proxy.decision(t.Context(), h, nil, true)
		x.upstream = w.proxy.upstream(&x.decision, false)
		plan := x.plan()
		check.Same(t, [2]bool{want.again, want.apart}, [2]bool{plan.Again, plan.Apart}, "%s: may be sent again, goes apart", line)
	}
}

// While the apiserver restarts, clients wait and see no error, over either protocol.
func TestLocalRestarts(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		w := newWorld(t, worldConfig{})
		for range 2 { // the first proves the token
			w.get(t, proto, "/api/v1/pods").want(t, 200, "before")
		}
		w.localDown.Store(true)
		w.local.CloseClientConnections()
		time.AfterFunc(700*time.Millisecond, func() { w.localDown.Store(false) })
		w.get(t, proto, "/api/v1/pods").want(t, 200, "a read")
	})
}

// A long-running write that a drain ends may have been executed: the client is not asked to retry.
func TestWriteAtADrain(t *testing.T) {
	came := make(chan struct{}, 1)
	bothBackends(t, worldConfig{remote: func(_ http.ResponseWriter, r *http.Request) {
		came <- struct{}{}
		<-r.Context().Done()
	}}, func(t *testing.T, w *world) {
		go func() {
			<-came
			w.proxy.EndLongRunning()
		}()
		got := w.do(t, w.httpClient(t, "http/1.1", nil), w.as(t, "bob", http.MethodPost, remoteGV+"/namespaces/a/widgets/b/proxy", strings.NewReader("body")))
		if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "" {
			t.Errorf("%d %v %s", got.status, got.header, got.body)
		}
	})
}

// When a backend's connection is no longer trusted, its watches end after 5 s as their timeout
// would end them, and its requests are answered. A watch over another connection goes on.
func TestTrustEnds(t *testing.T) {
	t.Parallel() // it waits most of the time
	everyWay(t, func(t *testing.T, proto string) {
		t.Parallel()
		lost := make(chan struct{})
		var anew atomic.Bool         // there is a connection that is trusted
		const slow = 6 * time.Second // past the end of the watches
		w := newWorld(t, worldConfig{
			pools: backend.Config{Guard: func(string, *registry.Backend, []*x509.Certificate) (<-chan struct{}, func()) {
				select {
				case <-lost:
					anew.Store(true)
					return nil, func() {}
				default:
					return lost, func() {}
				}
			}},
			remote: func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "begin ")
				_ = http.NewResponseController(w).Flush()
				end := time.After(slow)
				if strings.Contains(r.RequestURI, "watch=true") {
					end = nil
				}
				select {
				case <-end:
					_, _ = io.WriteString(w, "end")
				case <-r.Context().Done():
				}
			},
		})
		c := w.httpClient(t, proto, nil)
		open := func(query string) *http.Response {
			res := must.Get(c.Do(w.as(t, "alice", http.MethodGet, remoteGV+"/things"+query, nil)))(t)
			t.Cleanup(func() { res.Body.Close() })
			return res
		}
		watch, request := open("?watch=true"), open("")
		close(lost)
		begun := time.Now()
		var next *http.Response
		must.Soon(t, 4*time.Second, "another connection is used", func() bool {
			next = open("?watch=1")
			return anew.Load()
		})
		body, err := io.ReadAll(watch.Body)
		if took := time.Since(begun); err != nil || string(body) != "begin " || took < 4*time.Second || took > 6500*time.Millisecond {
			t.Errorf("the watch ended after %s with %q, %v", took, body, err)
		}
		for name, whole := range map[string]*http.Response{"the request": request, "a watch over another connection": next} {
			if body, err := io.ReadAll(whole.Body); err != nil || string(body) != "begin end" {
				t.Errorf("%s got %q, %v", name, body, err)
			}
		}
	})
}
