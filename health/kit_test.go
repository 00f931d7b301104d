package health

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strconv"
	"sync"
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

// feed is a table that a test changes.
type feed struct {
	mu         sync.Mutex // guards the fields below
	entries    []*registry.Entry
	superseded chan struct{}
}

func newFeed(entries ...*registry.Entry) *feed {
	return &feed{entries: entries, superseded: make(chan struct{})}
}

func (f *feed) table() Table {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fed{f.entries, f.superseded}
}

// fed is a snapshot of a feed.
type fed struct {
	entries    []*registry.Entry
	superseded <-chan struct{}
}

func (f fed) Entries() []*registry.Entry  { return f.entries }
func (f fed) Superseded() <-chan struct{} { return f.superseded }

func (f *feed) set(entries ...*registry.Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entries = entries
	close(f.superseded)
	f.superseded = make(chan struct{})
}

// timed is a report, and its time.
type timed struct {
	registry.Report
	at time.Time
}

type notebook struct {
	mu    sync.Mutex // guards the fields below
	notes []timed
	more  chan struct{} // closed by the next report; nil if unused
}

func (n *notebook) report(r registry.Report) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notes = append(n.notes, timed{r, time.Now()})
	if n.more != nil {
		close(n.more)
		n.more = nil
	}
}

// next returns a channel that the next report closes.
func (n *notebook) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.more == nil {
		n.more = make(chan struct{})
	}
	return n.more
}

func (n *notebook) all() []timed {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]timed(nil), n.notes...)
}

// last returns the newest report about an address.
func (n *notebook) last(address string) (last timed) {
	for _, r := range n.all() {
		if r.Address == address {
			last = r
		}
	}
	return last
}

const serverName = "metrics.kube-system.svc"

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

// copies makes n APIServices of the same group-version, with a Backend each.
func copies(n int) (all []*registry.Entry) {
	for i := range n {
		e := entry(at)
		e.Name += strconv.Itoa(i)
		all = append(all, e)
	}
	return all
}

// bench is a prober that runs in a bubble until the test ends.
type bench struct {
	*Prober
	cable *cable
	feed  *feed
	notes *notebook
}

func (b *bench) config(a authority) Config {
	return Config{
		Table:  b.feed.table,
		Report: b.notes.report,
		TLS:    func(string, *registry.Backend) (*tls.Config, error) { return &tls.Config{RootCAs: a.roots}, nil },
		Dial:   b.cable.dial,
	}
}

func startBench(t *testing.T, a authority, entries []*registry.Entry, change ...func(*Config)) *bench {
	t.Helper()
	b := &bench{cable: newCable(), feed: newFeed(entries...), notes: &notebook{}}
	c := b.config(a)
	for _, f := range change {
		f(&c)
	}
	b.Prober = must.Get(New(c))(t)
	return b
}

// served runs a bench, with a server at `at`.
func served(t *testing.T, entries []*registry.Entry, handler http.HandlerFunc, change ...func(*Config)) (*bench, *host) {
	t.Helper()
	ca := newAuthority(serverName)
	b := startBench(t, ca, entries, change...)
	h := b.cable.host(at)
	h.serve(t, ca, handler)
	b.run(t)
	return b, h
}

// dials counts the connections to `at`.
func (b *bench) dials() int { return len(b.cable.dialled(at)) }

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
func (b *bench) wantNothing(t *testing.T, hosts ...*host) {
	t.Helper()
	synctest.Wait()
	for _, h := range hosts {
		check.Same(t, 0, h.open(), "connections left")
	}
	check.Same(t, 0, b.watched.Load(), "connections counted as watched")
	if x := b.index.Load(); len(x.claims) != 0 || len(x.compared) != 0 {
		t.Errorf("%d APIServices left, %d with several endpoints", len(x.claims), len(x.compared))
	}
	for how := range b.failing {
		check.Same(t, 0, len(b.failing[how].by), "failing in way %d", how)
	}
}

// run starts the prober. It is stopped before the servers are.
func (b *bench) run(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		check.Same(t, 0, b.watched.Load(), "watched connections left")
	})
	must.Run(t, b.Run)
}
