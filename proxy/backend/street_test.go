package backend

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// street is a Pools whose APIServices may be neighbours. Its Run does not run: a test applies
// tables itself.
type street struct {
	*Pools
	t          *testing.T
	generation uint64
	entries    map[string]*registry.Entry
	backends   map[registry.Backend]*registry.Backend // as in the registry, equal ones are one pointer
	tls        func() (*tls.Config, error)
	// lost is closed when connections of an APIService are not trusted any more. Those of a Backend
	// stay trusted.
	lost chan struct{}
}

func newStreet(t *testing.T, change func(*Config)) *street {
	t.Helper()
	s := &street{t: t, entries: map[string]*registry.Entry{}, backends: map[registry.Backend]*registry.Backend{}, lost: make(chan struct{})}
	cfg := Config{
		Table: func() *registry.Table { return &registry.Table{} }, Dial: new(net.Dialer).DialContext,
		TLS: func(string, *registry.Backend) (*tls.Config, error) { return s.tls() },
		Guard: func(apiService string, _ *registry.Backend, _ []*x509.Certificate) (<-chan struct{}, func()) {
			if apiService == "" {
				return nil, func() {}
			}
			return s.lost, func() {}
		},
	}
	if change != nil {
		change(&cfg)
	}
	p := must.Get(New(cfg))(t)
	s.Pools = p
	t.Cleanup(p.shared.stop)
	return s
}

// house adds an APIService to the next table.
func (s *street) house(name string, change func(*registry.Entry, *registry.Backend), endpoints ...registry.Endpoint) {
	b := &registry.Backend{Namespace: "ns", Service: "svc", Port: 443, ServerName: "svc.ns.svc"}
	e := &registry.Entry{Name: name, GroupVersion: schema.GroupVersion{Group: name, Version: "v1"}, Backend: b, Endpoints: endpoints}
	if old := s.entries[name]; old != nil {
		*b, e.Policy = *old.Backend, old.Policy
		if endpoints == nil {
			e.Endpoints = old.Endpoints
		}
	}
	if change != nil {
		change(e, b)
	}
	if known := s.backends[*b]; known != nil {
		e.Backend = known
	}
	s.backends[*b] = e.Backend
	s.entries[name] = e
}

// table applies a table of all APIServices.
func (s *street) table() {
	s.generation++
	var list []*registry.Entry
	for _, e := range s.entries {
		list = append(list, e)
	}
	s.apply(s.generation, list)
}

func (s *street) up(name string) *Upstream { return s.Upstream(s.entries[name]) }

// via returns the carrier that a request uses, or nil if it uses its own connections.
func (s *street) via(name string) *Upstream {
	s.t.Helper()
	l, ok := s.up(name).Pick()
	if !ok {
		s.t.Fatalf("%s has no endpoint", name)
	}
	defer l.Release()
	at := l.e.via.Load()
	if at == nil {
		return nil
	}
	if at.address != l.Address() {
		s.t.Errorf("%s uses %s over a carrier for %s", name, l.Address(), at.address)
	}
	return at.up
}

const place1, place2 = "10.0.0.1:443", "10.0.0.2:443"
