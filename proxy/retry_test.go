package proxy

import (
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// newWorldBeside adds a faulty backend, which is preferred to the healthy one.
func newWorldBeside(t *testing.T, bad *faulty) *world {
	t.Helper()
	address := netip.MustParseAddrPort(bad.address)
	port := int32(address.Port())
	w := newWorld(t, worldConfig{
		also: func(in *registry.Input) {
			key := types.NamespacedName{Namespace: "default", Name: "ext"}
			in.Slices[key] = append(in.Slices[key], &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ext-2"}, AddressType: discoveryv1.AddressTypeIPv4,
				Ports:     []discoveryv1.EndpointPort{{Name: new("https"), Port: &port}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address.Addr().String()}}},
			})
		},
		judge: func(r *registry.Report) {
			if r.Address != bad.address {
				r.Health = registry.Unprobed // a lower tier
			}
		},
	})
	pair := w.serving.Issue(pki.Leaf{Names: []string{"ext.default.svc"}}).TLS()
	bad.pair.Store(&pair)
	return w
}

// No field of a client causes a write to be sent again that may have been executed.
func TestIdempotencyKey(t *testing.T) {
	for _, http1 := range []bool{false, true} {
		w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: func(_ http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete {
				panic(http.ErrAbortHandler)
			}
		}})
		everyWay(t, func(t *testing.T, proto string) {
			w.get(t, proto, remoteGV+"/widgets") // opens the connection: net/http retries only over a reused one
			before := w.remote.count()
			r := w.as(t, "bob", http.MethodDelete, remoteGV+"/widgets/a", nil)
			r.Header.Set("Idempotency-Key", "1")
			got := w.do(t, w.httpClient(t, proto, nil), r)
			if n := w.remote.count() - before; n != 1 || got.status != http.StatusServiceUnavailable || w.remote.last(t).header.Get("Idempotency-Key") != "1" {
				t.Errorf("HTTP/1.1 backend %v: executed %d times, answered with %d", http1, n, got.status)
			}
		})
	}
}

// Whatever one endpoint does to a request, the other one serves it if it may be retried. No write
// that may have been executed is executed twice.
func TestRetry(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   act
		// unprocessed requests may always be retried, others only if they are reads.
		unprocessed bool
	}{
		{"refused stream", refuse, true},
		{"goaway below the stream", goaway, true},
		{"goaway, executed", goawayExecuted, false},
		{"reset", resetExecuted, false},
		{"closed", closeExecuted, false},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			t.Run(tt.name+" "+method, func(t *testing.T) {
				everyWay(t, func(t *testing.T, proto string) {
					bad := newFaulty(t, tt.do)
					w := newWorldBeside(t, bad)
					read, body := method == http.MethodGet, ""
					if !read {
						body = strings.Repeat("body", 10_000)
					}
					got := w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", method, remoteGV+"/widgets", strings.NewReader(body)))
					executed := int(bad.executed.Load()) + w.remote.count()
					if tt.unprocessed || read {
						if got.status != http.StatusOK || w.remote.count() != 1 || w.remote.last(t).body != body {
							t.Errorf("got %d %s; the healthy endpoint got %d requests", got.status, got.body, w.remote.count())
						}
					} else if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "" {
						t.Errorf("got %d %s", got.status, got.body)
					}
					if !read && executed != 1 {
						t.Errorf("a write was executed %d times", executed)
					}
				})
			})
		}
	}
}

// A write whose answer broke off before the client got any of it was executed: the client is not
// asked to retry.
func TestBrokenAnswerOfAWrite(t *testing.T) {
	for name, do := range map[string]act{"reset": createdThenReset, "closed": createdThenClose, "short": createdThenShort} {
		t.Run(name, func(t *testing.T) {
			bad := newFaulty(t, do)
			w := newWorldBeside(t, bad)
			r := w.as(t, "bob", http.MethodPost, remoteGV+"/widgets", strings.NewReader("body"))
			got := w.do(t, w.httpClient(t, "http/1.1", nil), r)
			if bad.executed.Load() != 1 || w.remote.count() != 0 || got.status < 500 || got.header.Get("Retry-After") != "" {
				t.Errorf("executed %d times, answered with %d %v %s", bad.executed.Load(), got.status, got.header, got.body)
			}
		})
	}
}

// A long-running write that a drain ends may have been executed: the client is not asked to retry.
func TestWriteAtADrain(t *testing.T) {
	for _, http1 := range []bool{false, true} {
		came := make(chan struct{})
		w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: func(_ http.ResponseWriter, r *http.Request) {
			close(came)
			<-r.Context().Done()
		}})
		r := w.as(t, "bob", http.MethodPost, remoteGV+"/namespaces/a/widgets/b/proxy", strings.NewReader("body"))
		go func() {
			<-came
			w.proxy.EndLongRunning()
		}()
		if got := w.do(t, w.httpClient(t, "http/1.1", nil), r); got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "" {
			t.Errorf("HTTP/1.1 backend %v: %d %v %s", http1, got.status, got.header, got.body)
		}
	}
}

// URLs are endpoints like any other: if one of two refuses connections, the other one serves every
// request, also writes, since nothing was sent.
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
				w.do(t, client, r).want(t, http.StatusOK, "HTTP/1.1 backend", http1, method, i)
				in := w.remote.last(t)
				if in.method != method || in.peer != "front-proxy-client" || in.header.Get("X-Remote-User") != "bob" || in.header.Get("Host") != w.remote.Listener.Addr().String() {
					t.Fatalf("HTTP/1.1 backend %v: it got %+v", http1, in)
				}
			}
		})
		if failed.Load() == 0 {
			t.Errorf("HTTP/1.1 backend %v: the dead one was never tried", http1)
		}
	}
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
			guard: func(string, *registry.Backend, []*x509.Certificate) (<-chan struct{}, func()) {
				select {
				case <-lost:
					anew.Store(true)
					return nil, func() {}
				default:
					return lost, func() {}
				}
			},
			remote: func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "begin ")
				_ = http.NewResponseController(w).Flush()
				if strings.Contains(r.RequestURI, "watch=true") {
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
		var next *http.Response
		must.Soon(t, 4*time.Second, "another connection is used", func() bool {
			next = open(remoteGV + "/things?watch=1")
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

// Methods are case-sensitive (RFC 9110 §9.1): what only looks like GET is not known to be safe.
func TestRetryUnknownMethod(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		bad := newFaulty(t, resetExecuted)
		w := newWorldBeside(t, bad)
		got := w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "gET", remoteGV, nil))
		if n := int(bad.executed.Load()) + w.remote.count(); n != 1 {
			t.Errorf("executed %d times, answered with %d", n, got.status)
		}
	})
}
