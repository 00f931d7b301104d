package proxy

import (
	"crypto/x509"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// street is a world of several APIServices of one Service, which share connections.
type street struct {
	*world
	t       *testing.T
	config  worldConfig
	client  *http.Client
	bundles map[string][]byte // the APIServices' CAs, by group
	tables  int

	mu    sync.Mutex        // guards conns
	conns map[string]string // by path: the last request's connection
}

func newStreet(t *testing.T) *street {
	s := &street{t: t, bundles: map[string][]byte{}, conns: map[string]string{}}
	s.config = worldConfig{roots: func(_ string, b *registry.Backend) *x509.CertPool { return roots(b) }, pools: backend.Config{Guard: s.guardTrust}, remote: func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.conns[r.URL.Path] = r.RemoteAddr
		s.mu.Unlock()
		if _, _ = io.WriteString(w, "ok"); r.URL.RawQuery != "" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}}
	s.world = newWorld(t, s.config)
	s.config.also = s.input
	s.client = s.httpClient(t, "h2", nil)
	return s
}

func roots(b *registry.Backend) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(b.CABundle))
	return pool
}

// guardTrust ends at once connections that are not trusted now. As in certs/trust, the trust of an
// APIService may change, and that of a whole Backend never does.
func (s *street) guardTrust(apiService string, b *registry.Backend, chain []*x509.Certificate) (<-chan struct{}, func()) {
	of := []*registry.Backend{b}
	if apiService != "" {
		of = nil
		for _, e := range s.table().Entries() {
			if e.Name == apiService {
				of = append(of, e.Backend)
			}
		}
	}
	lost := make(chan struct{})
	for _, b := range of {
		if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots(b), DNSName: b.ServerName}); err == nil {
			return lost, func() {}
		}
	}
	close(lost)
	return lost, func() {}
}

// input adds the APIServices to the table.
func (s *street) input(in *registry.Input) {
	of := in.APIServices["v1.remote.example.com"]
	of.Labels = map[string]string{"table": strconv.Itoa(s.tables)}
	for g, bundle := range s.bundles {
		c := of.DeepCopy()
		c.ObjectMeta = metav1.ObjectMeta{Name: "v1." + g}
		c.Spec.Group, c.Spec.CABundle = g, bundle
		in.APIServices[c.Name] = c
	}
}

// apply makes a table and applies it, by a request to the one entry that differs in every table.
func (s *street) apply() {
	s.tables++
	s.current.Store(buildTable(s.t, s.world, s.config))
	s.get(s.t, "h2", remoteGV)
}

func things(group string) string { return "/apis/" + group + "/v1/things" }

// conn sends a request to a group and returns the connection over which the backend received it.
func (s *street) conn(group string) string {
	s.t.Helper()
	s.do(s.t, s.client, s.as(s.t, "bob", "GET", things(group), nil)).want(s.t, 200, group)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[things(group)]
}

// refused checks that groups do not trust their backend.
func (s *street) refused(when string, groups ...string) {
	s.t.Helper()
	for _, g := range groups {
		for range 3 {
			s.do(s.t, s.client, s.as(s.t, "bob", "GET", things(g), nil)).want(s.t, http.StatusServiceUnavailable, when, g)
		}
	}
}

// watch begins a watch, and returns what waits for its end.
func (s *street) watch(group string) (ended chan error) {
	s.t.Helper()
	res := must.Get(s.client.Do(s.as(s.t, "bob", "GET", things(group)+"?watch=1", nil)))(s.t)
	s.t.Cleanup(func() { res.Body.Close() })
	ended = make(chan error, 1)
	go func() { _, err := io.ReadAll(res.Body); ended <- err }()
	return ended
}

// ends checks that a watch ends cleanly within the promised 5 s, and some time for a slow machine.
func (s *street) ends(what string, watch chan error) {
	s.t.Helper()
	must.Soon(s.t, 10*time.Second, "the end of the watch "+what, func() bool { return len(watch) > 0 })
	must.Do(s.t, <-watch)
}

// A connection serves only APIServices whose CAs verify it, and ends the watches of others. Those who share it are
// unaffected. proxy/backend tests who shares what, and registry who is in an overlap.
func TestSharedTrust(t *testing.T) {
	t.Parallel()
	const a, b, c, d = "a.example.com", "b.example.com", "c.example.com", "d.example.com"
	s := newStreet(t)
	for _, g := range []string{a, b, c, d} {
		s.bundles[g] = s.serving.PEM()
	}
	s.apply()
	var shared string
	must.Soon(t, 30*time.Second, "all share a connection", func() bool { // the first request of each may use another one, to learn the backend's protocol
		shared = s.conn(a)
		return s.conn(b) == shared && s.conn(c) == shared && s.conn(d) == shared
	})
	stays, grows, ends, goes := s.watch(a), s.watch(b), s.watch(c), s.watch(d)
	next := pki.NewCA("next").PEM()
	s.bundles[b] = append(s.serving.PEM(), next...)
	s.bundles[c] = next
	delete(s.bundles, d)
	s.apply()
	own := s.conn(b)
	check.Same(t, false, own == shared, "an APIService with a new bundle uses the connection of its old one")
	s.refused("with a bundle that does not verify the backend", c)
	s.ends("whose trust has ended", ends)
	s.ends("of one that was deleted", goes)
	check.Same(t, 0, len(grows), "watches that have ended although the new bundle trusts their connection, too")
	check.Same(t, shared, s.conn(a), "a neighbour's connection")
	check.Same(t, 0, len(stays), "a neighbour's watches that have ended")
}
