package health

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority is a CA and a certificate of it that outlive any time a test may have (a bubble begins
// in the year 2000).
type authority struct {
	roots *x509.CertPool
	pair  tls.Certificate
}

func newAuthority(tb testing.TB, name string, notAfter time.Time) authority {
	tb.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rand.Text()}, DNSNames: []string{name},
		NotBefore: time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(tb)
	leaf := must.Get(x509.ParseCertificate(der))(tb)
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return authority{roots, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}
}

func farFuture() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }

// feed is a table that a test changes by hand.
type feed struct {
	mu         sync.Mutex // guards what follows
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

// fed is what a feed was once.
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

// told is what a prober reported, and when.
type told struct {
	registry.Report
	at time.Time
}

type notebook struct {
	mu    sync.Mutex // guards what follows
	notes []told
	more  chan struct{} // closed by the next report; nil: nobody waits for it
}

func (n *notebook) report(r registry.Report) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notes = append(n.notes, told{r, time.Now()})
	if n.more != nil {
		close(n.more)
		n.more = nil
	}
}

// next is closed by the next report.
func (n *notebook) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.more == nil {
		n.more = make(chan struct{})
	}
	return n.more
}

func (n *notebook) all() []told {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]told(nil), n.notes...)
}

// last returns the newest report about an address.
func (n *notebook) last(address string) (last told) {
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

func startBench(t *testing.T, a authority, entries []*registry.Entry, change func(*Config)) *bench {
	t.Helper()
	b := &bench{cable: newCable(), feed: newFeed(entries...), notes: &notebook{}}
	c := b.config(a)
	if change != nil {
		change(&c)
	}
	p := must.Get(New(c))(t)
	b.Prober = p
	return b
}

// run starts the prober; it is stopped and awaited before the servers are.
func (b *bench) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		if n := b.watched.Load(); n != 0 {
			t.Errorf("%d watched connections left", n)
		}
	})
}
