package proxy

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// newWorldBeside has a faulty backend beside the one that is well, and asked first.
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

// Nothing that a client says has a write sent again that may have been executed.
func TestIdempotencyKey(t *testing.T) {
	for _, http1 := range []bool{false, true} {
		w := newWorld(t, worldConfig{remoteHTTP1: http1, remote: func(_ http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete {
				panic(http.ErrAbortHandler)
			}
		}})
		everyWay(t, func(t *testing.T, proto string) {
			w.get(t, proto, remoteGV+"/widgets") // makes the connection, which net/http only then takes for one that was idle for too long
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

// Whatever one endpoint does to a request, the other serves what may be sent again, and nothing
// that may have been executed is executed twice.
func TestRetry(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   act
		// unprocessed requests may be sent again whatever they are, others only if they are reads.
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
					r := w.as(t, "bob", method, remoteGV+"/widgets", strings.NewReader(body))
					got := w.do(t, w.httpClient(t, proto, nil), r)
					executed := int(bad.executed.Load()) + w.remote.count()
					if tt.unprocessed || read {
						if got.status != http.StatusOK || w.remote.count() != 1 || w.remote.last(t).body != body {
							t.Errorf("got %d %s; the good endpoint had %d requests", got.status, got.body, w.remote.count())
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

// A write was executed whose answer has broken off before its client had any of it: nobody tells
// the client to repeat it.
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

// A write that the end of this process ends, as it runs long, may have been executed: nobody tells
// its client to repeat it.
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
