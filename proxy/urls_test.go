package proxy

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// URLs are endpoints like any other: of two, one of which nobody is at, each request is served by
// the other, a write too, since nothing of it was sent.
func TestURLs(t *testing.T) {
	for _, http1 := range []bool{false, true} {
		l := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
		dead := l.Addr().String()
		must.Do(t, l.Close())
		var failed atomic.Int64
		w := newWorld(t, worldConfig{
			remoteHTTP1: http1,
			also: func(in *registry.Input) {
				s := in.Slices[types.NamespacedName{Namespace: "default", Name: "ext"}][0]
				o := in.APIServices["v1.remote.example.com"]
				o.Spec.Service = nil
				o.Annotations = map[string]string{"fairlead.dev/url": fmt.Sprintf("https://%s:%d,https://%s", s.Endpoints[0].Addresses[0], *s.Ports[0].Port, dead)}
				in.Services, in.Slices, in.Options.AllowURLs = nil, nil, true
			},
			backends: func(c *backend.Config) {
				c.Signal = func(_, address string, _ error) {
					if address == dead {
						failed.Add(1)
					}
				}
			},
		})
		everyWay(t, func(t *testing.T, proto string) {
			client := w.httpClient(t, proto, nil)
			for i := range 40 {
				method := []string{http.MethodGet, http.MethodPost}[i%2]
				r := w.as(t, "bob", method, remoteGV+"/widgets", strings.NewReader("{}"))
				if got := w.do(t, client, r); got.status != http.StatusOK {
					t.Fatalf("HTTP/1.1 backend %v, %s %d: %d %s", http1, method, i, got.status, got.body)
				}
				in := w.remote.last(t)
				if in.method != method || in.peer != "front-proxy-client" || in.header.Get("X-Remote-User") != "bob" || in.header.Get("Host") != w.remote.Listener.Addr().String() {
					t.Fatalf("HTTP/1.1 backend %v: it got %+v", http1, in)
				}
			}
		})
		if failed.Load() == 0 {
			t.Errorf("HTTP/1.1 backend %v: nobody has tried the dead one", http1)
		}
	}
}
