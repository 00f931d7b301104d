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
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority is a CA and a certificate of it that outlive any time a test may have (a bubble begins in the year 2000).
type authority struct {
	roots *x509.CertPool
	pair  tls.Certificate
}

func newAuthority(tb testing.TB, name string, notAfter time.Time) authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rand.Text()}, DNSNames: []string{name},
		NotBefore: time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return authority{roots, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}
}

func farFuture() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }

// cable is a network in memory: what a bubble can wait on.
type cable struct {
	mu    sync.Mutex // guards hosts and dials
	hosts map[string]*host
	dials []dial
}

type dial struct {
	address string
	at      time.Time
}

// host is a process at an address of a cable.
type host struct {
	cable  *cable
	accept chan net.Conn
	mu     sync.Mutex // guards what follows
	state  hostState
	ends   []*end
}

type hostState int

const (
	listening hostState = iota
	refusing
	vanished // packets are dropped
)

func newCable() *cable { return &cable{hosts: map[string]*host{}} }

func (c *cable) host(address string) *host {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &host{cable: c, accept: make(chan net.Conn, 4096)}
	c.hosts[address] = h
	return h
}

func (c *cable) dial(ctx context.Context, _, address string) (net.Conn, error) {
	c.mu.Lock()
	c.dials = append(c.dials, dial{address, time.Now()})
	h := c.hosts[address]
	c.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Addr: addr(address), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	if h == nil {
		return nil, refused
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.state {
	case refusing:
		return nil, refused
	case vanished:
		h.mu.Unlock()
		<-ctx.Done()
		h.mu.Lock()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: addr(address), Err: os.ErrDeadlineExceeded}
	}
	near, far := newPipe()
	h.ends = append(h.ends, near, far)
	h.accept <- far
	return near, nil
}

// dialled returns when an address was dialled.
func (c *cable) dialled(address string) (at []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.dials {
		if d.address == address {
			at = append(at, d.at)
		}
	}
	return at
}

// set changes how the host behaves. One that refuses has died: its connections are reset.
func (h *host) set(s hostState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state = s
	for _, e := range h.ends {
		switch s {
		case refusing:
			e.reset()
		case vanished:
			e.cut()
		}
	}
	if s != listening {
		h.ends = nil
	}
}

// open counts the connections whose near end nobody has closed.
func (h *host) open() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.ends {
		if e.near && !e.in.closed() {
			n++
		}
	}
	return n
}

// Accept, Close and Addr make the host a listener.
func (h *host) Accept() (net.Conn, error) {
	c, ok := <-h.accept
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (h *host) Close() error {
	h.set(refusing)
	close(h.accept)
	return nil
}

func (h *host) Addr() net.Addr { return addr("host") }

// serve runs an HTTPS server on a host until the test ends; the handler says what it does.
func (h *host) serve(t *testing.T, a authority, handler http.HandlerFunc) {
	t.Helper()
	s := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0), TLSConfig: &tls.Config{Certificates: []tls.Certificate{a.pair}}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.ServeTLS(h, "", "")
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
		synctest.Wait()
	})
}

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// stream is one direction of a connection: bytes, and how it ends. net.Pipe would not do: it has no buffer, and TLS writes from both sides.
type stream struct {
	mu       sync.Mutex // guards what follows
	changed  *sync.Cond
	data     []byte
	err      error // what a read gets after the data
	cut      bool
	deadline time.Time
	timer    *time.Timer
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *stream) update(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	s.changed.Broadcast()
}

func (s *stream) end(err error) {
	s.update(func() {
		if s.err == nil {
			s.err = err
		}
		if s.timer != nil {
			s.timer.Stop()
		}
	})
}

func (s *stream) closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case !s.deadline.IsZero() && !time.Now().Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		case s.err != nil && (s.cut || len(s.data) == 0):
			return 0, s.err
		case len(s.data) > 0 && !s.cut:
			n := copy(p, s.data)
			s.data = s.data[n:]
			return n, nil
		}
		s.changed.Wait()
	}
}

func (s *stream) setDeadline(d time.Time) {
	s.update(func() {
		s.deadline = d
		if s.timer != nil {
			s.timer.Stop()
		}
		if !d.IsZero() && s.err == nil {
			s.timer = time.AfterFunc(time.Until(d), s.changed.Broadcast)
		}
	})
}

// end is one side of a connection.
type end struct {
	in, out   *stream
	near      bool
	keepAlive net.KeepAliveConfig
}

func newPipe() (near, far *end) {
	a, b := newStream(), newStream()
	return &end{in: a, out: b, near: true}, &end{in: b, out: a}
}

func (e *end) reset() {
	err := &net.OpError{Op: "read", Net: "tcp", Source: addr("127.0.0.1:34567"), Addr: addr("host"), Err: syscall.ECONNRESET}
	e.in.end(err)
}

func (e *end) cut() { e.in.update(func() { e.in.cut = true }) }

func (e *end) Read(p []byte) (int, error) { return e.in.read(p) }

func (e *end) Write(p []byte) (int, error) {
	var err error
	e.out.update(func() {
		if e.out.err != nil {
			err = syscall.EPIPE
			return
		}
		e.out.data = append(e.out.data, p...)
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (e *end) Close() error {
	e.in.end(net.ErrClosed)
	e.out.end(io.EOF)
	return nil
}

func (e *end) SetKeepAliveConfig(c net.KeepAliveConfig) error { e.keepAlive = c; return nil }
func (e *end) LocalAddr() net.Addr                            { return addr("local") }
func (e *end) RemoteAddr() net.Addr                           { return addr("remote") }
func (e *end) SetWriteDeadline(time.Time) error               { return nil }
func (e *end) SetReadDeadline(d time.Time) error              { e.in.setDeadline(d); return nil }
func (e *end) SetDeadline(d time.Time) error                  { e.in.setDeadline(d); return nil }

// feed is a table that a test changes by hand.
type feed struct {
	mu         sync.Mutex // guards what follows
	entries    []*registry.Entry
	superseded chan struct{}
}

func newFeed(entries ...*registry.Entry) *feed {
	return &feed{entries: entries, superseded: make(chan struct{})}
}

func (f *feed) source() ([]*registry.Entry, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.entries, f.superseded
}

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
	mu    sync.Mutex // guards notes
	notes []told
}

func (n *notebook) report(r registry.Report) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notes = append(n.notes, told{r, time.Now()})
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
		Table:  func() *registry.Table { return nil },
		Report: b.notes.report,
		TLS:    func(*registry.Backend) (*tls.Config, error) { return &tls.Config{RootCAs: a.roots}, nil },
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
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	p.source = b.feed.source
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
