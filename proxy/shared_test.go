package proxy

import (
	"crypto/x509"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A connection serves only APIServices whose CAs verify it, and ends the watches of others. Those who share it are
// unaffected. proxy/backend tests who shares what, and registry who is in an overlap.
func TestSharedTrust(t *testing.T) {
	t.Parallel()
	var w *world
	bundles, tables := map[string][]byte{}, 0 // the APIServices' CAs, by group
	roots := func(b *registry.Backend) *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(b.CABundle))
		return pool
	}
	c := worldConfig{roots: func(_ string, b *registry.Backend) *x509.CertPool { return roots(b) }}
	c.remote = func(w http.ResponseWriter, r *http.Request) {
		if _, _ = io.WriteString(w, r.RemoteAddr); r.URL.RawQuery != "" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}
	// Connections that are not trusted now end at once. As in certs/trust, the trust of an APIService may change, and
	// that of a whole Backend never does.
	c.pools.Guard = func(apiService string, b *registry.Backend, chain []*x509.Certificate) (<-chan struct{}, func()) {
		of, lost := []*registry.Backend{b}, make(chan struct{})
		if apiService != "" {
			of = nil
			for _, e := range w.table().Entries() {
				if e.Name == apiService {
					of = append(of, e.Backend)
				}
			}
		}
		if !slices.ContainsFunc(of, func(b *registry.Backend) bool {
			_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots(b), DNSName: b.ServerName})
			return err == nil
		}) {
			close(lost)
		}
		return lost, func() {}
	}
	c.also = func(in *registry.Input) {
		remote := in.APIServices["v1.remote.example.com"]
		remote.Labels = map[string]string{"table": strconv.Itoa(tables)}
		for g, bundle := range bundles {
			one := remote.DeepCopy()
			one.ObjectMeta = metav1.ObjectMeta{Name: "v1." + g}
			one.Spec.Group, one.Spec.CABundle = g, bundle
			in.APIServices[one.Name] = one
		}
	}
	w = newWorld(t, c)
	client := w.httpClient(t, "h2", nil)
	// apply makes a table and applies it, by a request to the one entry that differs in every table.
	apply := func() {
		tables++
		w.current.Store(buildTable(t, w, c))
		w.get(t, "h2", remoteGV)
	}
	ask := func(group, query string, want int) io.Reader {
		res := must.Get(client.Do(w.as(t, "bob", "GET", "/apis/"+group+"/v1/things"+query, nil)))(t)
		t.Cleanup(func() { res.Body.Close() })
		check.Same(t, want, res.StatusCode, "%s: status", group)
		return res.Body
	}
	// conn returns the connection over which the backend gets a group's request.
	conn := func(group string) string { return string(must.Get(io.ReadAll(ask(group, "", http.StatusOK)))(t)) }
	watch := func(group string) chan error {
		body, ended := ask(group, "?watch=1", http.StatusOK), make(chan error, 1)
		go func() { _, err := io.ReadAll(body); ended <- err }()
		return ended
	}

	const stays, grows, ends, goes = "stays.example.com", "grows.example.com", "ends.example.com", "goes.example.com"
	groups, watches := []string{stays, grows, ends, goes}, map[string]chan error{}
	for _, g := range groups {
		bundles[g] = w.serving.PEM()
	}
	apply()
	shared := ""
	must.Soon(t, 30*time.Second, "all share a connection", func() bool { // the first request of each may use another one, to learn the backend's protocol
		shared = conn(stays)
		return !slices.ContainsFunc(groups, func(g string) bool { return conn(g) != shared })
	})
	for _, g := range groups {
		watches[g] = watch(g)
	}
	next := pki.NewCA("next").PEM()
	bundles[grows], bundles[ends] = append(w.serving.PEM(), next...), next
	delete(bundles, goes)
	apply()
	check.Same(t, false, conn(grows) == shared, "an APIService with a new bundle uses the connection of its old one")
	for range 3 {
		ask(ends, "", http.StatusServiceUnavailable)
	}
	for _, g := range []string{ends, goes} { // within the promised 5 s, and some time for a slow machine
		must.Soon(t, 10*time.Second, "the watch of "+g+" has ended", func() bool { return len(watches[g]) > 0 })
		must.Do(t, <-watches[g])
	}
	check.Same(t, shared, conn(stays), "a neighbour's connection")
	check.Same(t, 0, len(watches[stays])+len(watches[grows]), "watches that have ended although their connection is trusted")
}

// When a backend's connection is no longer trusted, its watches end after 5 s as their timeout
// would end them, and its requests are answered. A watch over another connection goes on.
func TestTrustEnds(t *testing.T) {
	t.Parallel() // it waits most of the time
	everyWay(t, func(t *testing.T, proto string) {
		t.Parallel()
		lost, ended := make(chan struct{}), make(chan struct{})
		var anew atomic.Bool // there is a connection that is trusted
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
				if strings.Contains(r.RequestURI, "watch=true") {
					<-r.Context().Done()
				}
				select {
				case <-ended:
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
		begun := time.Now()
		close(lost)
		var next *http.Response
		must.Soon(t, 20*time.Second, "another connection is used", func() bool {
			next = open("?watch=1")
			return anew.Load()
		})
		body, err := io.ReadAll(watch.Body)
		check.Within(t, 4*time.Second, 10*time.Second, time.Since(begun), "time until the watch ends, some of it for a slow machine")
		check.Same(t, true, err == nil && string(body) == "begin ", "the watch: %q, %v", body, err)
		close(ended)
		for name, whole := range map[string]*http.Response{"the request": request, "a watch over another connection": next} {
			check.Same(t, "begin end", string(must.Get(io.ReadAll(whole.Body))(t)), "%s", name)
		}
	})
}
