package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Each watch has its own connection, which ends with it.
func TestManyWatches(t *testing.T) {
	const watches = 60
	s := newServer(t, protoH1, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	f := newFixture(t, nil)
	e := f.set(healthy(s.address))
	var bodies []io.Closer
	for range watches {
		bodies = append(bodies, must.Get(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), true))(t).Body)
	}
	check.Same(t, watches, s.open.Load(), "connections, one for each watch")
	for _, b := range bodies {
		_ = b.Close()
	}
	check.Same(t, 0, e1(f, e).inFlight.Load(), "leases still held")
	must.Soon(t, 10*time.Second, "the connections to close", func() bool { return s.open.Load() == 0 && f.Upstream(e).meter.connections.Load() == 0 })
}

func e1(f *fixture, e *registry.Entry) *endpoint { return f.Upstream(e).snapshot()[0] }

// A connection to a removed endpoint finishes its requests, accepts no new ones, and closes.
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
		conn, err := f.Upstream(e).dialH2(t.Context(), old.address, nil)
		if proto == protoH2 && err != nil {
			t.Fatal(err)
		}
		res := must.Get(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), false))(t)
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
		must.Soon(t, 10*time.Second, "the old connections to close", func() bool { return old.open.Load() == 0 })
		if _, err := f.Upstream(e).dialH2(t.Context(), old.address, nil); !errors.Is(err, ErrUnreachable) {
			t.Errorf("dialH2 to a removed endpoint: %v", err)
		}
	})
}

// A connection that is no longer trusted gets no new requests. Its requests finish, and its watches
// end within 5 s.
func TestTrustEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newMemoryNet(t)
		lost := make(chan struct{})
		var guarded, released int
		var mu sync.Mutex
		f := newFixture(t, func(cfg *Config) {
			cfg.Dial = n.dial
			cfg.Guard = func(_ string, _ *registry.Backend, chain []*x509.Certificate) (<-chan struct{}, func()) {
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
		n.serve("10.0.0.1:443", protoH2, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Second):
				_, _ = io.WriteString(w, "done")
			}
		})
		e := f.set(healthy("10.0.0.1:443"))
		owned := must.Get(f.Upstream(e).dialH2(t.Context(), "10.0.0.1:443", nil))(t)
		upgraded := must.Get(f.Upstream(e).DialUpgrade(t.Context()))(t)
		watch := must.Get(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), true))(t)
		request := must.Get(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), false))(t)
		start := time.Now()
		old := lost
		lost = make(chan struct{})
		close(old)
		<-owned.Drain
		synctest.Wait()
		next := must.Get(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), false))(t)
		_ = next.Body.Close() // with its connection
		synctest.Wait()
		check.Same(t, 2, f.Upstream(e).meter.connections.Load(), "pooled connections, the two old ones")
		if _, err := io.ReadAll(watch.Body); !errors.Is(err, net.ErrClosed) || time.Since(start) != watchGrace {
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
		check.Same(t, 0, f.Upstream(e).meter.connections.Load(), "pooled connections at the end")
		mu.Lock()
		defer mu.Unlock()
		if guarded != 5 || released != 5 {
			t.Errorf("%d connections were guarded, %d released", guarded, released)
		}
	})
}

// Unused connections are closed. When a server closes an idle HTTP/1.1 connection it is unknown
// whether it read a request. So no request uses a connection that was idle for staleIdle.
func TestIdle(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		synctest.Test(t, func(t *testing.T) {
			n, f := newMemoryFixture(t)
			n.serve("10.0.0.1:443", proto, nil)
			e := f.set(healthy("10.0.0.1:443"))
			for i, method := range []string{http.MethodGet, http.MethodGet, http.MethodPost} {
				must.Get2(f.do(e, method, ""))(t)
				check.Same(t, uint64(i+1), f.Upstream(e).meter.dials[dialOK].Load(), "%s: connections made so far", method)
				time.Sleep(staleIdle - time.Second)
				for _, want := range []int64{1, 0} { // before the idle timeout, and after it
					synctest.Wait()
					check.Same(t, want, f.Upstream(e).meter.connections.Load(), "connections")
					time.Sleep(2 * time.Second)
				}
			}
		})
	})
}

// raw is a handler that sends bytes, and closes its connection, or resets it.
func raw(t *testing.T, text string, reset bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, text)
		if tc, ok := conn.(*tls.Conn); ok && reset {
			conn = tc.NetConn()
			_ = conn.(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // the listener's; closing resets it
		}
		_ = conn.Close()
	}
}

// A server that ends each body by closing the connection, as in HTTP/1.0, has not failed. One whose
// connection breaks within such a body has.
func TestBodyEndsWithConnection(t *testing.T) {
	for name, broken := range map[string]bool{"closed": false, "broken": true} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, protoH1, raw(t, "HTTP/1.0 200 OK\r\n\r\nbody", broken))
			f := newFixture(t, nil)
			e := f.set(healthy(s.address))
			_, body, err := f.do(e, http.MethodGet, "")
			if (err != nil) != broken || !broken && body != "body" {
				t.Errorf("got %q, %v", body, err)
			}
			check.Same(t, broken, f.signals.count(s.address) == 1, "one signal")
			check.Same(t, broken, e1(f, e).load() > 0, "suspect")
		})
	}
}

// Health learns how fast a server answers, not how slowly a client uploads.
func TestSlowUploadIsNotObserved(t *testing.T) {
	s := newServer(t, protoH1, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	const slow = time.Second
	observed := make(chan time.Duration, 1)
	f := newFixture(t, func(c *Config) { c.Observe = func(_, _ string, took time.Duration) { observed <- took } })
	body, upload := io.Pipe()
	time.AfterFunc(slow, func() { _ = upload.Close() })
	r := newRequest(t, http.MethodPost, "")
	r.Body, r.ContentLength = body, -1
	res := must.Get(f.RoundTrip(f.set(healthy(s.address)), r, false))(t)
	must.Do(t, res.Body.Close())
	if took := <-observed; took <= 0 || took >= slow {
		t.Errorf("observed %v", took)
	}
}

// A server may end its body properly when it notices that its connection is being closed. So what
// is read after the end of the request is not complete, even if it seems to be.
func TestBodyEndsWithRequest(t *testing.T) {
	// All of it is read with the head.
	s := newServer(t, protoH1, raw(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", false))
	f := newFixture(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	res := must.Get(f.RoundTrip(f.set(healthy(s.address)), newRequest(t, http.MethodGet, "").WithContext(ctx), false))(t)
	cancel()
	if _, got, err := read(res, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %q, %v", got, err)
	}
}
