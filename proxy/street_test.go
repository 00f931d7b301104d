package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// neighbour is an APIService of the street's one Service.
type neighbour struct {
	bundle      []byte // nil: the server's CA
	port        int32  // 0: 443; 8443 leads to the same process
	annotations map[string]string
}

// street is a world of several APIServices of one Service.
type street struct {
	*world
	t       *testing.T
	config  worldConfig
	client  *http.Client
	homes   map[string]*neighbour // by group
	pair    atomic.Pointer[tls.Certificate]
	rotated chan struct{}
	tables  int
	later   time.Duration // added to the time of the next table

	mu    sync.Mutex
	conns map[string]string // by path: the last request's connection
	hung  chan struct{}     // receives one value for each hanging request
	free  chan struct{}     // closed to answer them
	// overlapping APIServices trust the server regardless of their bundle.
	overlapping map[string]bool
}

func newStreet(t *testing.T, groups ...string) *street {
	s := &street{t: t, homes: map[string]*neighbour{}, conns: map[string]string{}, overlapping: map[string]bool{}, rotated: make(chan struct{}), hung: make(chan struct{}, 64), free: make(chan struct{})}
	s.config = worldConfig{
		pair: func() tls.Certificate {
			if p := s.pair.Load(); p != nil {
				return *p
			}
			return tls.Certificate{} // newWorld is running
		},
		roots:    s.roots,
		guard:    s.guard,
		identity: func() <-chan struct{} { return s.rotated },
		remote:   s.answer,
	}
	s.world = newWorld(t, s.config)
	s.show("front-proxy-client")
	for _, g := range groups {
		s.homes[g] = &neighbour{}
	}
	s.config.also = s.input
	s.client = s.httpClient(t, "h2", nil)
	s.apply()
	return s
}

// roots returns the bundle's CAs and, for an APIService in its overlap, the server's.
func (s *street) roots(apiService string, b *registry.Backend) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(b.CABundle))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.overlapping[apiService] {
		pool.AddCert(s.serving.Certificate)
	}
	return pool
}

// guard ends at once connections that are not trusted now. As in certs/trust, the trust of an
// APIService may change, and that of a whole Backend never does.
func (s *street) guard(apiService string, b *registry.Backend, chain []*x509.Certificate) (<-chan struct{}, func()) {
	if s.pair.Load() == nil { // newWorld is running
		return nil, func() {}
	}
	lost := make(chan struct{})
	if apiService != "" {
		b = nil
		for _, e := range s.table().Entries() {
			if e.Name == apiService {
				b = e.Backend
			}
		}
	}
	if b == nil {
		close(lost)
	} else if _, err := chain[0].Verify(x509.VerifyOptions{Roots: s.roots(apiService, b), DNSName: b.ServerName}); err != nil {
		close(lost)
	}
	return lost, func() {}
}

// overlap starts or ends an APIService's trust in the server beyond its bundle.
func (s *street) overlap(group string, begins bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.overlapping["v1."+group] = begins
}

// show gives Fairlead another client certificate.
func (s *street) show(name string) {
	pair := s.authorities.front.Issue(pki.Leaf{CommonName: name}).TLS()
	s.pair.Store(&pair)
}

// rotate replaces the client certificate with that of front-proxy-client-2.
func (s *street) rotate() {
	s.show("front-proxy-client-2")
	changed := s.rotated
	s.rotated = nil // no further rotation
	close(changed)
}

// input adds the neighbours to the table, and the other port to the Service.
func (s *street) input(in *registry.Input) {
	in.Now = in.Now.Add(s.later)
	of := in.APIServices["v1.remote.example.com"]
	of.Labels = map[string]string{"table": strconv.Itoa(s.tables)}
	for g, h := range s.homes {
		c := of.DeepCopy()
		c.ObjectMeta = metav1.ObjectMeta{Name: "v1." + g, Annotations: h.annotations}
		c.Spec.Group = g
		if h.bundle != nil {
			c.Spec.CABundle = h.bundle
		}
		if h.port != 0 {
			c.Spec.Service.Port = &h.port
		}
		in.APIServices[c.Name] = c
	}
	for key := range in.Services {
		in.Services[key].Spec.Ports = append(in.Services[key].Spec.Ports, corev1.ServicePort{Name: "alt", Port: 8443})
		slice := in.Slices[key][0]
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new("alt"), Port: slice.Ports[0].Port})
	}
}

// answer is the backend's handler: it records the connection of each request, keeps watches open,
// and hangs if asked to.
func (s *street) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.conns[r.URL.Path] = r.RemoteAddr
	s.mu.Unlock()
	if strings.Contains(r.URL.RawQuery, "hang") {
		s.hung <- struct{}{}
		select {
		case <-s.free:
		case <-r.Context().Done():
		}
	}
	_, _ = io.WriteString(w, "ok")
	if strings.Contains(r.URL.RawQuery, "watch") {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// apply makes a table and applies it, by a request to the one entry that differs in every table.
func (s *street) apply() {
	s.tables++
	s.current.Store(buildTable(s.t, s.world, s.config))
	s.open(remoteGV + "/things").Body.Close()
}

func things(group string) string { return "/apis/" + group + "/v1/things" }

func (s *street) open(target string) *http.Response {
	s.t.Helper()
	r := s.request(s.t, http.MethodGet, target, nil)
	r.Header.Set("Authorization", "Bearer token-of-alice")
	res := must.Get(s.client.Do(r))(s.t)
	s.t.Cleanup(func() { res.Body.Close() })
	return res
}

// conn sends a request to a group and returns the connection over which the backend received it.
func (s *street) conn(group string) string {
	s.t.Helper()
	res := s.open(things(group))
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "ok" || res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %d %q, %v", group, res.StatusCode, body, err)
	}
	return s.at(group)
}

// at returns the connection of a group's last request.
func (s *street) at(group string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[things(group)]
}

// shared waits until groups share a connection, and returns it: the first request of each may use
// another one, to learn the backend's protocol.
func (s *street) shared(groups ...string) (first string) {
	s.t.Helper()
	must.Soon(s.t, 30*time.Second, fmt.Sprint(groups, " share a connection"), func() bool {
		first = s.conn(groups[0])
		all := true
		for _, g := range groups[1:] {
			all = all && s.conn(g) == first
		}
		return all && s.conn(groups[0]) == first
	})
	return first
}

// goesOn checks that a watch stays open for a second.
func (s *street) goesOn(what string, w *http.Response) {
	s.t.Helper()
	done := make(chan error, 1)
	go func() { _, err := io.ReadAll(w.Body); done <- err }()
	select {
	case err := <-done:
		s.t.Errorf("the watch %s has ended: %v", what, err)
	case <-time.After(time.Second):
	}
}

// ends checks that a watch ends cleanly within the promised 5 s, and some time for a slow machine.
func (s *street) ends(what string, w *http.Response) {
	s.t.Helper()
	begun := time.Now()
	if body, err := io.ReadAll(w.Body); err != nil || string(body) != "ok" || time.Since(begun) > 10*time.Second {
		s.t.Errorf("the watch %s: %q, %v after %v", what, body, err, time.Since(begun))
	}
}

// closes checks that a connection to the backend is closed.
func (s *street) closes(what, address string) {
	s.t.Helper()
	must.Soon(s.t, 30*time.Second, "the connection "+what+" is closed", func() bool { return !s.remote.isOpen(address) })
}

// another adds a second process to the Service, and returns it.
func (s *street) another(h http.HandlerFunc) *far {
	f := newFar(s.t, &s.authorities, true, "ext.default.svc", h)
	at := netip.MustParseAddrPort(f.Listener.Addr().String())
	also, port := s.config.also, int32(at.Port())
	s.config.also = func(in *registry.Input) {
		also(in)
		for key := range in.Slices {
			second := in.Slices[key][0].DeepCopy()
			second.Name = "ext-2"
			for i := range second.Ports {
				second.Ports[i].Port = &port
			}
			in.Slices[key] = append(in.Slices[key], second)
		}
	}
	return f
}
