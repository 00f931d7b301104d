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
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

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
