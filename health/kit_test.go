package health

import (
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs a subtest in a bubble.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// overBoth runs a test in a bubble for each protocol.
func overBoth(t *testing.T, test func(t *testing.T, http1 bool)) {
	t.Helper()
	for _, http1 := range []bool{false, true} {
		bubble(t, "http1="+strconv.FormatBool(http1), func(t *testing.T) { test(t, http1) })
	}
}

// pass lets time pass, and then waits for everything that is due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// authority is a CA with a certificate.
type authority struct {
	roots *x509.CertPool
	pair  tls.Certificate
}

// newAuthority makes an authority whose certificate is for a name.
func newAuthority(name string) authority { return authorityOf(pki.Leaf{Names: []string{name}}) }

func authorityOf(leaf pki.Leaf) authority {
	ca := pki.NewCA(rand.Text())
	return authority{ca.Pool(), ca.Issue(leaf).TLS()}
}

// trust returns a client configuration that trusts the authority.
func (a authority) trust() (*tls.Config, error) { return &tls.Config{RootCAs: a.roots}, nil }

// feed is a table that a test changes.
type feed struct {
	mu         sync.Mutex // guards the fields below
	entries    []*registry.Entry
	superseded chan struct{}
}

func (f *feed) table() Table {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fed{f.entries, f.superseded}
}

func (f *feed) set(entries ...*registry.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entries = entries
	close(f.superseded)
	f.superseded = make(chan struct{})
}

// fed is a snapshot of a feed.
type fed struct {
	entries    []*registry.Entry
	superseded <-chan struct{}
}

func (f fed) Entries() []*registry.Entry  { return f.entries }
func (f fed) Superseded() <-chan struct{} { return f.superseded }

// timed is a report, and its time.
type timed struct {
	registry.Report
	at time.Time
}

// notebook keeps reports.
type notebook struct {
	mu     sync.Mutex // guards the fields below
	notes  []timed
	newest map[[2]string]timed // :: APIService, address
}

func (n *notebook) report(r registry.Report) {
	n.mu.Lock()
	defer n.mu.Unlock()
	note := timed{r, time.Now()}
	n.notes = append(n.notes, note)
	n.newest[[2]string{r.Name, r.Address}] = note
}

func (n *notebook) all() []timed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.notes)
}

// of returns the newest report about an APIService at an address, by default `at`.
func (n *notebook) of(e *registry.Entry, address ...string) timed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.newest[[2]string{e.Name, append(address, at)[0]}]
}

const serverName, at = "metrics.kube-system.svc", "10.0.0.1:443"

// entry is metrics.k8s.io/v1beta1 at some addresses.
func entry(addresses ...string) *registry.Entry {
	e := &registry.Entry{
		Name:         "v1beta1.metrics.k8s.io",
		GroupVersion: schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"},
		Backend:      &registry.Backend{Namespace: "kube-system", Service: "metrics", Port: 443, ServerName: serverName},
	}
	for _, a := range addresses {
		e.Endpoints = append(e.Endpoints, registry.Endpoint{Address: a})
	}
	return e
}

// servers is an entry without a group-version: the local apiservers.
func servers(addresses ...string) *registry.Entry {
	e := entry(addresses...)
	e.Name, e.GroupVersion, e.Backend = "local-apiserver", schema.GroupVersion{}, &registry.Backend{ServerName: serverName}
	return e
}

// family makes n APIServices with one Backend.
func family(n int, http1 bool, addresses ...string) (entries []*registry.Entry) {
	b := *entry().Backend
	b.HTTP1 = http1
	for i := range n {
		e := entry(addresses...)
		e.GroupVersion = schema.GroupVersion{Group: "g" + strconv.Itoa(i) + ".example.com", Version: "v1"}
		e.Name, e.Backend = "v1."+e.GroupVersion.Group, &b
		entries = append(entries, e)
	}
	return entries
}

// copies makes n APIServices with a Backend each.
func copies(n int) []*registry.Entry {
	all := family(n, false, at)
	for _, e := range all {
		b := *e.Backend
		e.Backend = &b
	}
	return all
}

func pathOf(e *registry.Entry) string { return probeURL(e, at).Path }

// backend is a handler with a switchable answer, which counts requests by path.
type backend struct {
	status atomic.Int64
	hung   atomic.Bool
	delay  atomic.Int64
	mu     sync.Mutex // guards the fields below
	asked  map[string]int
	odd    map[string]http.HandlerFunc // different answers
}

func newBackend() *backend { return &backend{asked: map[string]int{}} }

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	b.asked[r.URL.Path]++
	odd := b.odd[r.URL.Path]
	b.mu.Unlock()
	lasts(r, time.Duration(b.delay.Load()))
	switch {
	case b.hung.Load():
		hang(w, r)
	case odd != nil:
		odd(w, r)
	default:
		w.WriteHeader(int(cmp.Or(b.status.Load(), http.StatusOK)))
	}
}

func (b *backend) times(e *registry.Entry) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[pathOf(e)]
}

// answers sets a different answer for an entry; nil resets it.
func (b *backend) answers(e *registry.Entry, odd http.HandlerFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.odd = map[string]http.HandlerFunc{pathOf(e): odd}
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func refuse(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }

// lasts is the work of a handler, which ends early if its client leaves.
func lasts(r *http.Request, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}

// bench is a prober in a bubble.
type bench struct {
	*Prober
	cable *cable
	feed  *feed
	notes *notebook
}

// newBench makes a prober of entries that trusts an authority.
func newBench(t *testing.T, a authority, entries []*registry.Entry, change ...func(*Config)) *bench {
	t.Helper()
	b := &bench{
		cable: newCable(), feed: &feed{entries: entries, superseded: make(chan struct{})}, notes: &notebook{newest: map[[2]string]timed{}},
	}
	c := Config{
		Table:  b.feed.table,
		Report: b.notes.report,
		TLS:    func(string, *registry.Backend) (*tls.Config, error) { return a.trust() },
		Dial:   b.cable.dial,
	}
	for _, f := range change {
		f(&c)
	}
	b.Prober = must.Get(New(c))(t)
	return b
}

// run starts the prober. It is stopped before the servers are.
func (b *bench) run(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		check.Same(t, 0, b.watched.Load(), "watched connections left")
	})
	must.Run(t, b.Run)
}

// serve runs a prober, with a server at each address of the first entry, or at `at`.
func serve(t *testing.T, entries []*registry.Entry, handler http.HandlerFunc, change ...func(*Config)) (*bench, *host) {
	t.Helper()
	ca := newAuthority(serverName)
	b := newBench(t, ca, entries, change...)
	b.cable.host(at).serve(t, ca, handler)
	if len(entries) > 0 {
		for _, e := range entries[0].Endpoints {
			if e.Address != at {
				b.cable.host(e.Address).serve(t, ca, handler)
			}
		}
	}
	b.run(t)
	return b, b.cable.hosts[at]
}

// single runs one healthy endpoint at `at`.
func single(t *testing.T) (*bench, *host, *backend) {
	t.Helper()
	return healthy(t, []*registry.Entry{entry(at)})
}

// healthy runs entries at `at`, and checks that they are healthy at once.
func healthy(t *testing.T, entries []*registry.Entry) (*bench, *host, *backend) {
	t.Helper()
	s := newBackend()
	b, h := serve(t, entries, s.ServeHTTP)
	pass(time.Millisecond)
	b.wantAll(t, "at once", registry.Healthy)
	check.Same(t, len(entries), len(b.notes.all()), "reports")
	return b, h, s
}

// dials counts the connections to `at`.
func (b *bench) dials() int { return len(b.cable.dialled(at)) }

// alarm signals the failure of a request to the first entry.
func (b *bench) alarm() { b.Signal(b.feed.entries[0].Name, at, errors.New("connection lost")) }

// until returns the time until the newest report about each APIService at `at` has a health. It
// ends the test after limit.
func (b *bench) until(t *testing.T, want registry.Health, limit time.Duration) time.Duration {
	t.Helper()
	from := time.Now()
	for synctest.Wait(); time.Since(from) <= limit; pass(10 * time.Millisecond) {
		took, all := time.Duration(0), true
		for _, e := range b.feed.entries {
			if e.Endpoints[0].Address == at {
				r := b.notes.of(e)
				took, all = max(took, r.at.Sub(from)), all && r.Health == want
			}
		}
		if all {
			return took
		}
	}
	t.Fatalf("not all were reported %d within %v: %+v", want, limit, b.notes.all())
	return 0
}

// wantAll ends the test unless the newest report about each APIService has a health.
func (b *bench) wantAll(t *testing.T, when string, want registry.Health) {
	t.Helper()
	for _, e := range b.feed.entries {
		if r := b.notes.of(e); r.Health != want {
			t.Fatalf("%s: %+v", when, r)
		}
	}
}

// wantNothing checks that no connection, claim or counter remains.
func (b *bench) wantNothing(t *testing.T) {
	t.Helper()
	synctest.Wait()
	for address, h := range b.cable.hosts {
		check.Same(t, 0, h.open(), "connections left to %s", address)
	}
	check.Same(t, 0, b.watched.Load(), "connections counted as watched")
	if x := b.index.Load(); len(x.claims) != 0 || len(x.compared) != 0 {
		t.Errorf("%d APIServices left, %d with several endpoints", len(x.claims), len(x.compared))
	}
	for how := range b.failing {
		check.Same(t, 0, len(b.failing[how].by), "failing in way %d", how)
	}
}
