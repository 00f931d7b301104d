package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A connection to a removed endpoint finishes its requests, accepts no new ones, and closes.
func TestRemovedEndpoint(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		f := newFixture(t, nil)
		old := f.serve(place1, proto, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Second)
			_, _ = io.WriteString(w, "done")
		})
		fresh := f.serve(place2, proto, nil)
		e := f.set(healthy(place1))
		removed := f.Upstream(e).at(place1)
		conn, err := dialWatched(t.Context(), removed)
		if proto == protoH2 && err != nil {
			t.Fatal(err)
		}
		res := must.Get(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), false))(t)
		e = f.set(healthy(place2))
		if conn != nil {
			<-conn.drained
			_ = conn.Close()
		}
		if _, _, err := f.do(e, http.MethodPost, "body"); err != nil || fresh.hits.Load() != 1 {
			t.Errorf("got %v", err)
		}
		if _, text, err := read(res, nil); err != nil || text != "done" {
			t.Errorf("the request under way got %q, %v", text, err)
		}
		synctest.Wait()
		check.Same(t, 0, old.open.Load(), "old connections")
		if _, err := dialWatched(t.Context(), removed); reasonOf(err) != engine.ReasonDial {
			t.Errorf("dialH2 to a removed endpoint: %v", err)
		}
	})
}

// A connection that is no longer trusted gets no new requests. Its requests finish, and its watches end within 5 s.
func TestTrustEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := make(chan struct{})
		var guarded, released atomic.Int64
		f := newFixture(t, func(cfg *Config) {
			cfg.Guard = func(_ string, _ *registry.Backend, chain []*x509.Certificate) (<-chan struct{}, func()) {
				if len(chain) == 0 {
					t.Error("no chain")
				}
				guarded.Add(1)
				return lost, func() { released.Add(1) }
			}
		})
		f.serve(place1, protoH2, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Second):
				_, _ = io.WriteString(w, "done")
			}
		})
		e := f.set(healthy(place1))
		u := f.Upstream(e)
		owned := must.Get(dialWatched(t.Context(), u.at(place1)))(t)
		upgraded := must.Get(u.DialUpgrade(t.Context(), nil))(t)
		watch := must.Get(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), true))(t)
		request := must.Get(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), false))(t)
		start := time.Now()
		old := lost
		lost = make(chan struct{})
		close(old)
		<-owned.drained
		synctest.Wait()
		next := must.Get(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), false))(t)
		_ = next.Body.Close() // with its connection
		synctest.Wait()
		check.Same(t, 2, u.meter.connections.Load(), "pooled connections, the two old ones")
		check.Same(t, 3, u.snapshot()[0].inFlight.Load(), "leases, of these and the upgraded one")
		if _, err := io.ReadAll(watch.Body); !errors.Is(err, net.ErrClosed) || time.Since(start) != watchGrace {
			t.Errorf("the watch ended after %v with %v", time.Since(start), err)
		}
		_ = watch.Body.Close()
		<-owned.cut
		_ = owned.Close()
		synctest.Wait()
		if _, err := upgraded.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the upgraded connection is not closed: %v", err)
		}
		if _, text, err := read(request, nil); err != nil || text != "done" {
			t.Errorf("the request got %q, %v", text, err)
		}
		synctest.Wait()
		check.Same(t, 0, u.meter.connections.Load()+u.snapshot()[0].inFlight.Load(), "pooled connections and leases at the end")
		check.Same(t, [2]int64{5, 5}, [2]int64{guarded.Load(), released.Load()}, "connections that were guarded, and released")
	})
}

// Unused connections are closed. When a server closes an idle HTTP/1.1 connection it is unknown
// whether it read a request. So no request uses a connection that was idle for staleIdle.
func TestIdle(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		f := newFixture(t, nil)
		f.serve(place1, proto, nil)
		e := f.set(healthy(place1))
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
}

// raw is a handler that sends bytes, and closes its connection, or resets it.
func raw(t *testing.T, text string, reset bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _ := must.Get2(http.NewResponseController(w).Hijack())(t)
		_, _ = io.WriteString(conn, text)
		if tc, ok := conn.(*tls.Conn); ok && reset {
			conn = tc.NetConn()
			_ = conn.(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // the kernel's; closing resets it
		}
		_ = conn.Close()
	}
}

// A server that ends each body by closing the connection, as in HTTP/1.0, has not failed. One whose
// connection breaks within such a body has.
func TestBodyEndsWithConnection(t *testing.T) {
	for name, broken := range map[string]bool{"closed": false, "broken": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(cfg *Config) { cfg.Dial = new(net.Dialer).DialContext })
			address := f.kernel(raw(t, "HTTP/1.0 200 OK\r\n\r\nbody", broken))
			e := f.set(healthy(address))
			_, body, err := f.do(e, http.MethodGet, "")
			if (err != nil) != broken || !broken && body != "body" {
				t.Errorf("got %q, %v", body, err)
			}
			check.Same(t, broken, f.signals.count(address) == 1, "one signal")
			check.Same(t, broken, f.Upstream(e).snapshot()[0].load() > 0, "suspect")
		})
	}
}

// Health learns how fast a server answers, not how slowly a client uploads.
func TestSlowUploadIsNotObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow, works = time.Minute, time.Second
		var observed []time.Duration
		f := newFixture(t, func(c *Config) {
			c.Observe = func(_, _ string, took time.Duration) { observed = append(observed, took) }
		})
		f.serve(place1, protoH1, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			time.Sleep(works)
		})
		body, upload := io.Pipe()
		time.AfterFunc(slow, func() { _ = upload.Close() })
		r := newRequest(t, http.MethodPost, "")
		r.Body, r.ContentLength = body, -1
		res := must.Get(f.RoundTrip(f.set(healthy(place1)), r, false))(t)
		must.Do(t, res.Body.Close())
		check.Same(t, []time.Duration{works}, observed, "observed")
	})
}

// A server may end its body properly when it notices that its connection is being closed. So what
// is read after the end of the request is not complete, even if it seems to be.
func TestBodyEndsWithRequest(t *testing.T) {
	f := newFixture(t, nil)
	// All of it is read with the head.
	f.serve(place1, protoH1, raw(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", false))
	ctx, cancel := context.WithCancel(t.Context())
	res := must.Get(f.RoundTrip(f.set(healthy(place1)), newRequest(t, http.MethodGet, "").WithContext(ctx), false))(t)
	cancel()
	if _, got, err := read(res, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %q, %v", got, err)
	}
}
