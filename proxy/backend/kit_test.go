package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

func TestMain(m *testing.M) { must.Main(m) }

func bothProtocols(t *testing.T, f func(t *testing.T, proto string)) {
	for _, proto := range []string{protoH1, protoH2} {
		t.Run(strings.ReplaceAll(proto, "/", ""), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { f(t, proto) }) })
	}
}

// fixture is a Pools whose tables a test applies, with a network.
type fixture struct {
	*Pools
	*network
	generation uint64
	entries    map[string]*registry.Entry             // of the next table
	backends   map[registry.Backend]*registry.Backend // as in the registry, equal ones are one pointer
	backend    *registry.Backend                      // of the entry that set makes
	policy     registry.Settings                      // as backend
	signals    signals
	// lost is closed when connections of an APIService are not trusted any more: Guard's, without
	// Run. Those of a Backend stay trusted.
	lost chan struct{}
}

type signals struct {
	mu   sync.Mutex
	list []string
}

func (s *signals) add(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, address)
}

func (s *signals) count(address string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list) - len(slices.DeleteFunc(slices.Clone(s.list), func(a string) bool { return a == address }))
}

func newFixture(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	f := newStreet(t, func(cfg *Config) {
		cfg.Guard = func(string, *registry.Backend, []*x509.Certificate) (<-chan struct{}, func()) { return nil, func() {} }
		if change != nil {
			change(cfg)
		}
	})
	must.Run(t, f.Run)
	return f
}

// newStreet makes Pools whose Run does not run, for APIServices that may be neighbours. Guard loses
// trust when a test closes lost.
func newStreet(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	f := &fixture{
		network: newNetwork(t), entries: map[string]*registry.Entry{}, backends: map[registry.Backend]*registry.Backend{}, lost: make(chan struct{}),
		backend: &registry.Backend{Namespace: "ns", Service: "svc", Port: 443},
	}
	cfg := Config{
		Tables: scene.TableFunc(func() *registry.Table { return &registry.Table{} }),
		TLS:    func(string, *registry.Backend) (*tls.Config, error) { return f.trust() },
		Dial:   f.dial,
		Signal: func(_, address string, _ error) { f.signals.add(address) }, Observe: func(string, string, time.Duration) {},
		IdentityChanged: func() <-chan struct{} { return nil },
		Guard: func(apiService string, _ *registry.Backend, _ []*x509.Certificate) (<-chan struct{}, func()) {
			if apiService == "" {
				return nil, func() {}
			}
			return f.lost, func() {}
		},
	}
	if change != nil {
		change(&cfg)
	}
	f.Pools = New(cfg)
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) set(endpoints ...registry.Endpoint) *registry.Entry {
	f.t.Helper()
	const name = "v1.example.com"
	f.house(name, func(e *registry.Entry, b *registry.Backend) {
		*b, e.Settings, e.Endpoints = *f.backend, f.policy, endpoints
	})
	f.table()
	return f.entries[name]
}

// house adds an APIService to the next table, or changes it.
func (f *fixture) house(name string, change func(*registry.Entry, *registry.Backend), endpoints ...registry.Endpoint) {
	b := &registry.Backend{Namespace: "ns", Service: "svc", Port: 443, ServerName: "example.com"}
	e := &registry.Entry{Name: name, GroupVersion: schema.GroupVersion{Group: name, Version: "v1"}, Backend: b, Endpoints: endpoints}
	if old := f.entries[name]; old != nil {
		*b, e.Settings = *old.Backend, old.Settings
		if endpoints == nil {
			e.Endpoints = old.Endpoints
		}
	}
	if change != nil {
		change(e, b)
	}
	if known := f.backends[*b]; known != nil {
		e.Backend = known
	}
	f.backends[*b] = e.Backend
	f.entries[name] = e
}

func (f *fixture) table() {
	f.generation++
	f.apply(f.generation, slices.Collect(maps.Values(f.entries)))
}

func (f *fixture) clear() {
	clear(f.entries)
	f.table()
}

func (f *fixture) up(name string) *Upstream { return f.Upstream(f.entries[name]) }

// via returns the carrier that a request uses, or nil if it uses its own connections.
func (f *fixture) via(name string) *Upstream {
	f.t.Helper()
	l := f.up(name).take(nil)
	must.Be(f.t, l != nil, "%s has no endpoint", name)
	defer l.release()
	at := l.via.Load()
	if at == nil {
		return nil
	}
	check.Same(f.t, l.address, at.address, "%s: the address of its carrier's endpoint", name)
	return at.up
}

const place1, place2 = "10.0.0.1:443", "10.0.0.2:443"

func healthy(address string) registry.Endpoint {
	return registry.Endpoint{Address: address, Health: registry.Healthy}
}

func (f *fixture) do(e *registry.Entry, method, body string) (int, string, error) {
	f.t.Helper()
	u := f.Upstream(e)
	if u == nil {
		return 0, "", Unreachable()
	}
	return roundTrip(f.t, u, method, body)
}

func roundTrip(t testing.TB, u *Upstream, method, body string) (int, string, error) {
	t.Helper()
	return read(send(u, newRequest(t, method, body), false))
}

func read(res *http.Response, err error) (int, string, error) {
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func newRequest(t testing.TB, method, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req := must.Get(http.NewRequestWithContext(t.Context(), method, "https://placeholder/apis/example.com/v1", r))(t)
	req.GetBody = nil // a proxy has none
	return req
}

// send first buffers a short body, as the front door does.
func send(u *Upstream, req *http.Request, longRunning bool) (*http.Response, error) {
	end, err := u.Hold(req, bound.Source{User: "ann"})
	if err != nil {
		return nil, err
	}
	defer end()
	return u.RoundTrip(req, longRunning, nil)
}

// RoundTrip sends a request to an entry's upstream.
func (f *fixture) RoundTrip(e *registry.Entry, req *http.Request, longRunning bool) (*http.Response, error) {
	return send(f.Upstream(e), req, longRunning)
}

// watched is a connection over HTTP/2 that says when it drains, and when it is cut.
type watched struct {
	*Conn
	drained, cut chan struct{}
}

func (u *Upstream) at(address string) *endpoint {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.endpoints[address]
}

func dialWatched(ctx context.Context, e *endpoint) (*watched, error) {
	w := &watched{drained: make(chan struct{}, 1), cut: make(chan struct{}, 2)}
	var err error
	w.Conn, err = e.up.dialOwned(ctx, e, dialing{
		protocols: []string{protoH2},
		drain:     func() { w.drained <- struct{}{} },
		cut:       func(*Conn) { w.cut <- struct{}{} },
	})
	return w, err
}
