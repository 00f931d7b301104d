package proxy

import (
	"crypto/x509"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// When the trust in a backend's connection ends, its watches end after 5 s as if their own time
// were over, and its requests are answered.
func TestTrustEnds(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		t.Parallel()
		lost := make(chan struct{})
		const slow = 6 * time.Second // past the end of the watches
		w := newWorld(t, worldConfig{
			guard: func(string, *registry.Backend, []*x509.Certificate) (<-chan struct{}, func()) { return lost, func() {} },
			remote: func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "begin ")
				_ = http.NewResponseController(w).Flush()
				if strings.Contains(r.RequestURI, "watch") {
					<-r.Context().Done()
					return
				}
				select {
				case <-time.After(slow):
					_, _ = io.WriteString(w, "end")
				case <-r.Context().Done():
				}
			},
		})
		c := w.httpClient(t, proto, nil)
		open := func(target string) *http.Response {
			r := w.as(t, "alice", http.MethodGet, target, nil)
			res := must.Get(c.Do(r))(t)
			t.Cleanup(func() { res.Body.Close() })
			return res
		}
		watch, request := open(remoteGV+"/things?watch=true"), open(remoteGV+"/things")
		close(lost)
		begun := time.Now()
		body, err := io.ReadAll(watch.Body)
		if took := time.Since(begun); err != nil || string(body) != "begin " || took < 4*time.Second || took > 6500*time.Millisecond {
			t.Errorf("the watch ended after %s with %q, %v", took, body, err)
		}
		if body, err := io.ReadAll(request.Body); err != nil || string(body) != "begin end" {
			t.Errorf("the request got %q, %v", body, err)
		}
	})
}
