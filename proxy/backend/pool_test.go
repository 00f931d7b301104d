package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/registry"
)

// hold is a handler that answers with a head, says so, and goes on until its client leaves.
func hold(started chan<- struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		started <- struct{}{}
		<-r.Context().Done()
	}
}

// Many watches make few HTTP/2 connections, and more than one; each HTTP/1.1 watch has its own. All end with their watches.
func TestManyWatches(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		watches := 600
		if proto == h1 {
			watches = 60
		}
		started := make(chan struct{}, watches)
		s := newServer(t, proto, hold(started))
		f := newFixture(t, nil)
		e := f.set(healthy(s.address))
		var wg sync.WaitGroup
		bodies := make(chan io.Closer, watches)
		for range watches {
			wg.Go(func() {
				res, err := f.RoundTrip(e, newRequest(t, http.MethodGet, ""), true)
				if err != nil {
					t.Error(err)
					return
				}
				bodies <- res.Body
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		n := s.open.Load()
		if proto == h1 && n != int64(watches) || proto == h2 && (n < 2 || n > softConns) {
			t.Errorf("%d watches use %d connections", watches, n)
		}
		close(bodies)
		for b := range bodies {
			_ = b.Close()
		}
		if l := e1(f, e).inFlight.Load(); l != 0 {
			t.Errorf("%d leases are still held", l)
		}
	})
}

func e1(f *fixture, e *registry.Entry) *endpoint { return f.Upstream(e).snapshot()[0] }

// The peer's limit of streams is kept, and requests beyond it get connections of their own.
func TestPeerLimit(t *testing.T) {
	started := make(chan struct{}, 30)
	s := newServer(t, h2, hold(started))
	s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 10}
	f := newFixture(t, nil)
	e := f.set(healthy(s.address))
	var wg sync.WaitGroup
	bodies := make(chan io.Closer, 30)
	for range 30 {
		wg.Go(func() {
			res, err := f.RoundTrip(e, newRequest(t, http.MethodGet, ""), true)
			if err != nil {
				t.Error(err)
				return
			}
			bodies <- res.Body
		})
	}
	wg.Wait()
	close(bodies)
	for b := range bodies {
		_ = b.Close()
	}
}

// A connection to an endpoint that is gone finishes its requests, takes no new one, and closes.
func TestRemovedEndpoint(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		proceed, started := make(chan struct{}), make(chan struct{}, 1)
		old := newServer(t, proto, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			started <- struct{}{}
			<-proceed
			_, _ = io.WriteString(w, "done")
		})
		fresh := newServer(t, proto, nil)
		f := newFixture(t, nil)
		e := f.set(healthy(old.address))
		conn, err := f.Upstream(e).DialH2(t.Context(), old.address)
		if proto == h2 && err != nil {
			t.Fatal(err)
		}
		res, err := f.RoundTrip(e, newRequest(t, http.MethodGet, ""), false)
		if err != nil {
			t.Fatal(err)
		}
		<-started
		e = f.set(healthy(fresh.address))
		if conn != nil {
			<-conn.Drain
			_ = conn.Close()
		}
		if _, _, err := f.do(e, http.MethodPost, "body"); err != nil || fresh.hits.Load() != 1 {
			t.Errorf("got %v", err)
		}
		close(proceed)
		text, err := io.ReadAll(res.Body)
		if err != nil || string(text) != "done" {
			t.Errorf("the request under way got %q, %v", text, err)
		}
		_ = res.Body.Close()
		waitFor(t, "the old connections to close", func() bool { return old.open.Load() == 0 })
		if _, err := f.Upstream(e).DialH2(t.Context(), old.address); !errors.Is(err, ErrUnreachable) {
			t.Errorf("DialH2 to a removed endpoint: %v", err)
		}
	})
}

// waitFor waits for what another process, or the kernel, does in its own time.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		runtime.Gosched()
	}
}

// When a connection's trust has ended it takes no new request, its requests end by themselves and its watches within 5 s.
func TestTrustEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNet(t)
		lost := make(chan struct{})
		var guarded, released int
		var mu sync.Mutex
		f := newFixture(t, func(cfg *Config) {
			cfg.Dial = n.dial
			cfg.Guard = func(_ *registry.Backend, chain []*x509.Certificate) (<-chan struct{}, func()) {
				mu.Lock()
				defer mu.Unlock()
				if len(chain) == 0 {
					t.Error("no chain")
				}
				guarded++
				return lost, func() {
					mu.Lock()
					defer mu.Unlock()
					released++
				}
			}
		})
		n.serve("10.0.0.1:443", h2, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Second):
				_, _ = io.WriteString(w, "done")
			}
		})
		defer n.stopAll()
		e := f.set(healthy("10.0.0.1:443"))
		owned, err := f.Upstream(e).DialH2(t.Context(), "10.0.0.1:443")
		if err != nil {
			t.Fatal(err)
		}
		upgraded, err := f.DialUpgrade(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		watch, err := f.RoundTrip(e, newRequest(t, http.MethodGet, ""), true)
		if err != nil {
			t.Fatal(err)
		}
		request, err := f.RoundTrip(e, newRequest(t, http.MethodGet, ""), false)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		old := lost
		lost = make(chan struct{})
		close(old)
		<-owned.Drain
		synctest.Wait()
		next, err := f.RoundTrip(e, newRequest(t, http.MethodGet, ""), false)
		if err != nil {
			t.Fatal(err)
		}
		_ = next.Body.Close()
		if c := f.Upstream(e).meter.connections.Load(); c != 2 {
			t.Errorf("%d pooled connections, want the old and the new one", c)
		}
		if _, err := io.ReadAll(watch.Body); err == nil || time.Since(start) != watchGrace {
			t.Errorf("the watch ended after %v with %v", time.Since(start), err)
		}
		_ = watch.Body.Close()
		<-owned.Cut
		_ = owned.Close()
		synctest.Wait()
		if _, err := upgraded.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the upgraded connection is not closed: %v", err)
		}
		text, err := io.ReadAll(request.Body)
		if err != nil || string(text) != "done" {
			t.Errorf("the request got %q, %v", text, err)
		}
		_ = request.Body.Close()
		synctest.Wait()
		if c := f.Upstream(e).meter.connections.Load(); c != 1 {
			t.Errorf("%d pooled connections at the end, want 1", c)
		}
		mu.Lock()
		defer mu.Unlock()
		if guarded != 4 || released != 3 {
			t.Errorf("%d connections were guarded, %d released", guarded, released)
		}
	})
}

// A new proxy client certificate drains all connections.
func TestIdentityChanged(t *testing.T) {
	s := newServer(t, h2, nil)
	changed := make(chan struct{})
	asked := make(chan struct{}, 2)
	f := newFixture(t, func(cfg *Config) {
		cfg.IdentityChanged = func() <-chan struct{} {
			asked <- struct{}{}
			if len(asked) > 1 {
				return nil
			}
			return changed
		}
	})
	e := f.set(healthy(s.address))
	if _, _, err := f.do(e, http.MethodGet, ""); err != nil {
		t.Fatal(err)
	}
	conn, err := f.Upstream(e).DialH2(t.Context(), s.address)
	if err != nil {
		t.Fatal(err)
	}
	close(changed)
	<-conn.Drain
	_ = conn.Close()
	waitFor(t, "the old connections to close", func() bool { return s.open.Load() == 0 })
	if _, _, err := f.do(e, http.MethodGet, ""); err != nil || s.conns.Load() != 3 {
		t.Errorf("got %v after %d connections, want 3", err, s.conns.Load())
	}
}

// Connections that nobody uses are closed.
func TestIdle(t *testing.T) {
	for _, proto := range []string{h1, h2} {
		synctest.Test(t, func(t *testing.T) {
			n, f := newMemoryFixture(t)
			n.serve("10.0.0.1:443", proto, nil)
			defer n.stopAll()
			e := f.set(healthy("10.0.0.1:443"))
			if _, _, err := f.do(e, http.MethodGet, ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(idleTimeout - time.Second)
			synctest.Wait()
			if c := f.Upstream(e).meter.connections.Load(); c != 1 {
				t.Errorf("%d connections before the time, want 1", c)
			}
			time.Sleep(idleTimeout/6 + 2*time.Second)
			synctest.Wait()
			if c := f.Upstream(e).meter.connections.Load(); c != 0 {
				t.Errorf("%d connections after the time, want 0", c)
			}
		})
	}
}

// HTTP/1.1 does not tell whether a server that closes an idle connection has read a request, so a write does not go where the server may be about to close.
func TestStaleHTTP1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, f := newMemoryFixture(t)
		n.serve("10.0.0.1:443", h1, nil)
		defer n.stopAll()
		e := f.set(healthy("10.0.0.1:443"))
		for _, tt := range []struct {
			method string
			want   uint64
		}{{http.MethodGet, 1}, {http.MethodGet, 1}, {http.MethodPost, 2}} {
			if _, _, err := f.do(e, tt.method, ""); err != nil {
				t.Fatal(err)
			}
			if got := f.Upstream(e).meter.dials[dialOK].Load(); got != tt.want {
				t.Errorf("%s: %d connections were made so far, want %d", tt.method, got, tt.want)
			}
			time.Sleep(staleIdle)
		}
	})
}

// Nothing is left over of a thousand updates, CA changes and deletions (kubernetes/kubernetes#117250 leaked a transport per sync).
func TestNoLeaks(t *testing.T) {
	a, b := newServer(t, h2, nil), newServer(t, h1, nil)
	f := newFixture(t, nil)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newCollector(f.upstreams))
	use := func(i int) {
		switch i % 4 {
		case 0:
			f.backend = &registry.Backend{Namespace: "ns", Service: "svc", Port: 443, CABundle: fmt.Append(nil, i)}
		case 1:
			f.backend = &registry.Backend{Namespace: "ns", Service: fmt.Sprint("svc", i), Port: 443}
		case 2:
			f.generation++
			f.apply(f.generation, nil)
		}
		e := f.set(healthy(a.address), healthy(b.address))
		if i%4 == 3 {
			e = f.set(healthy(b.address))
		}
		if _, _, err := f.do(e, http.MethodPost, "body"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		use(i)
	}
	f.generation++
	f.apply(f.generation, nil)
	waitFor(t, "all connections to close", func() bool { return a.open.Load()+b.open.Load() == 0 })
	specs := 0
	f.bySpec.Range(func(any, any) bool { specs++; return true })
	if len(f.remotes) != 0 || specs != 0 {
		t.Errorf("%d upstreams and %d specs are left", len(f.remotes), specs)
	}
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
		t.Errorf("%d series are left: %v", n, err)
	}
	inPackage := func() int {
		buf := make([]byte, 1<<20)
		n := 0
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "backend.(*conn)") || strings.Contains(g, "net/http.(*http2clientConnReadLoop)") || strings.Contains(g, "net/http.(*persistConn)") {
				n++
			}
		}
		return n
	}
	waitFor(t, "goroutines of connections to end", func() bool { return inPackage() == 0 })
}

// Endpoints on this very machine are refused, by whatever name.
func TestRefusedAddresses(t *testing.T) {
	s := newServer(t, h2, nil)
	_, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, address string
		allow         bool
		self          string
		ok            bool
	}{
		{"loopback", s.address, false, "", false},
		{"loopback by name", "localhost:" + port, false, "", false},
		{"unspecified", "0.0.0.0:" + port, false, "", false},
		{"link-local", "169.254.169.254:443", false, "", false},
		{"mapped", "[::ffff:127.0.0.1]:" + port, false, "", false},
		{"allowed", s.address, true, "", true},
		{"itself", s.address, true, s.address, false},
		{"itself by name", "localhost:" + port, true, s.address, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, func(cfg *Config) {
				cfg.AllowLoopback = tt.allow
				if tt.self != "" {
					cfg.Self = func(a netip.AddrPort) bool { return a.Addr().IsLoopback() && fmt.Sprint(a.Port()) == port }
				}
			})
			before := s.conns.Load()
			_, _, err := f.do(f.set(healthy(tt.address)), http.MethodGet, "")
			if (err == nil) != tt.ok {
				t.Errorf("got %v", err)
			}
			if !tt.ok && s.conns.Load() != before {
				t.Error("it was dialled")
			}
		})
	}
}

// An identity must not enter the connection's compression table.
func TestNoDynamicTable(t *testing.T) {
	blocks := make(chan []byte, 3)
	s := newFaulty(t, h2, func(f *faulty, x *exchange) bool {
		blocks <- x.raw
		return ok(f, x)
	})
	f := newFixture(t, nil)
	e := f.set(healthy(s.address))
	for range 3 {
		req := newRequest(t, http.MethodGet, "")
		req.Header.Set("X-Remote-User", "jane")
		res, err := f.RoundTrip(e, req, false)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	<-blocks // it may tell the size of the table
	if second, third := <-blocks, <-blocks; len(second) != len(third) {
		t.Errorf("the head of the same request shrank from %d to %d bytes", len(second), len(third))
	}
}

// Both metrics of a Pools and of a Local can be registered, and come out well-formed.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := newServer(t, h2, apiserver)
	l := newLocal(t, func(cfg *LocalConfig) { cfg.Metrics = reg }, s.address)
	f := newFixture(t, func(cfg *Config) { cfg.Metrics = reg })
	e := f.set(healthy(deadAddress(t)), registry.Endpoint{Address: s.address})
	if _, _, err := f.do(e, http.MethodGet, ""); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.get(t, PoolCertificate, ""); err != nil {
		t.Fatal(err)
	}
	const want = `
# HELP fairlead_backend_retries_total Tries after the first, by how the one before failed.
# TYPE fairlead_backend_retries_total counter
fairlead_backend_retries_total{after="dial",name="v1.example.com"} 1
# HELP fairlead_backend_dials_total Connections dialled, by what failed, or ok.
# TYPE fairlead_backend_dials_total counter
fairlead_backend_dials_total{name="local-certificate",result="ok"} 1
fairlead_backend_dials_total{name="local-proven",result="ok"} 0
fairlead_backend_dials_total{name="local-unproven",result="ok"} 0
fairlead_backend_dials_total{name="v1.example.com",result="connect"} 1
fairlead_backend_dials_total{name="v1.example.com",result="ok"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "fairlead_backend_retries_total", "fairlead_backend_dials_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(reg, "fairlead_backend_phase_seconds"); err != nil || n < 6 {
		t.Errorf("%d phases, %v", n, err)
	}
}

// A request may have matched a table that is older or newer than the one that was applied.
func TestOtherTables(t *testing.T) {
	s := newServer(t, h2, nil)
	f := newFixture(t, nil)
	old := f.set(healthy(deadAddress(t)))
	f.backend = &registry.Backend{Namespace: "ns", Service: "other", Port: 443}
	f.set(healthy(s.address))
	if _, _, err := f.do(old, http.MethodPost, ""); err != nil {
		t.Errorf("an entry of an older table: %v", err)
	}
	f.generation++
	f.apply(f.generation, nil)
	if _, _, err := f.do(old, http.MethodPost, ""); !errors.Is(err, ErrUnreachable) {
		t.Errorf("an entry that is gone: %v, want ErrUnreachable", err)
	}
	if release, ok := f.Acquire(old, false); !ok {
		t.Error("an entry that is gone: busy")
	} else {
		release()
	}
	if _, err := f.DialUpgrade(t.Context(), old); !errors.Is(err, ErrUnreachable) {
		t.Errorf("an entry that is gone: %v, want ErrUnreachable", err)
	}
}

// DialUpgrade speaks HTTP/1.1 to a server that prefers HTTP/2, goes past endpoints that are not there, and holds a lease until it is closed.
func TestDialUpgrade(t *testing.T) {
	s := newServer(t, h2, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	f := newFixture(t, nil)
	e := f.set(healthy(deadAddress(t)), registry.Endpoint{Address: s.address})
	c, err := f.DialUpgrade(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if p := c.(*Conn).ConnectionState().NegotiatedProtocol; p == h2 || c.RemoteAddr().String() != s.address {
		t.Errorf("got %q with %s", p, c.RemoteAddr())
	}
	inFlight := func() (n int64) {
		for _, e := range f.Upstream(e).snapshot() {
			n += e.inFlight.Load()
		}
		return n
	}
	if n := inFlight(); n != 1 {
		t.Errorf("%d leases are held, want 1", n)
	}
	_ = c.Close()
	_ = c.Close()
	if n := inFlight(); n != 0 {
		t.Errorf("%d leases are held after closing", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.DialUpgrade(ctx, e); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
}

// What needs HTTP/2 does not fall back to HTTP/1.1.
func TestHTTP2Only(t *testing.T) {
	s := newServer(t, h1, apiserver)
	l := newLocal(t, func(cfg *LocalConfig) { cfg.Wait = -1 }, s.address)
	for _, p := range []Pool{PoolCertificate, PoolProven} {
		if _, _, err := l.get(t, p, "good"); !errors.Is(err, ErrUnreachable) {
			t.Errorf("pool %d: got %v, want ErrUnreachable", p, err)
		}
	}
	f := newFixture(t, nil)
	if _, err := f.Upstream(f.set(healthy(s.address))).DialH2(t.Context(), s.address); !errors.Is(err, ErrUnreachable) {
		t.Errorf("DialH2: got %v, want ErrUnreachable", err)
	}
}

// An annotation turns HTTP/2 off, for the connections that there are, too.
func TestHTTP1Only(t *testing.T) {
	s := newServer(t, h2, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	f := newFixture(t, func(cfg *Config) {
		cfg.Guard = func(*registry.Backend, []*x509.Certificate) (<-chan struct{}, func()) { return nil, func() {} }
	})
	for _, http1 := range []bool{false, true} {
		b := *f.backend
		b.HTTP1 = http1
		f.backend = &b
		want := map[bool]string{false: "HTTP/2.0", true: "HTTP/1.1"}[http1]
		if _, got, err := f.do(f.set(healthy(s.address)), http.MethodGet, ""); err != nil || got != want {
			t.Errorf("http1 %v: got %q, %v", http1, got, err)
		}
	}
}

// A bundle that cannot be used is no fault of the endpoint.
func TestNoTrust(t *testing.T) {
	f := newFixture(t, func(cfg *Config) {
		cfg.TLS = func(*registry.Backend) (*tls.Config, error) { return nil, errors.New("bad bundle") }
	})
	if _, _, err := f.do(f.set(healthy("10.0.0.1:443")), http.MethodGet, ""); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "bad bundle") {
		t.Errorf("got %v", err)
	}
	if len(f.signals.list) != 0 {
		t.Errorf("signals: %v", f.signals.list)
	}
}

// What the texts of net/http's errors are relied on for must fail here when they change.
func TestErrorTexts(t *testing.T) {
	for kind := range failContext + 1 {
		if kind.String() == "" {
			t.Errorf("kind %d has no name", kind)
		}
		f := &failure{kind: kind, err: errLost}
		matches := 0
		for _, sentinel := range []error{ErrBusy, ErrUnreachable, ErrUnanswered, ErrBadResponse} {
			if errors.Is(f, sentinel) {
				matches++
			}
		}
		if want := 1; kind == failBody || kind == failContext {
			if matches != 0 {
				t.Errorf("%v matches %d sentinels", kind, matches)
			}
		} else if matches != want {
			t.Errorf("%v matches %d sentinels, want 1", kind, matches)
		}
	}
}
