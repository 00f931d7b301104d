package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

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
		check.Same(t, true, err == nil || proto == protoH1, "dialled over HTTP/2: %v", err)
		res := must.Get(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), false))(t)
		e = f.set(healthy(place2))
		if err == nil {
			<-conn.drained
			_ = conn.Close()
		}
		must.Get2(f.do(e, http.MethodPost, "body"))(t)
		check.Same(t, 1, fresh.hits.Load(), "requests of the new endpoint")
		_, text := must.Get2(read(res, nil))(t)
		check.Same(t, "done", text, "the request under way")
		synctest.Wait()
		check.Same(t, 0, old.open.Load(), "old connections")
		check.Same(t, engine.ReasonDial, reasonOf(check.Err(dialWatched(t.Context(), removed))), "dialling a removed endpoint")
	})
}

// A connection that is no longer trusted gets no new requests. Its requests finish, and its watches end within 5 s.
func TestTrustEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := make(chan struct{})
		var guarded, released atomic.Int64
		f := newFixture(t, func(cfg *Config) {
			cfg.Guard = func(_ string, _ *registry.Backend, chain []*x509.Certificate) (<-chan struct{}, func()) {
				check.Same(t, false, len(chain) == 0, "no chain")
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
		check.Is(t, net.ErrClosed, check.Err(io.ReadAll(watch.Body)), "how the watch ends")
		check.Same(t, watchGrace, time.Since(start), "when it ends")
		_ = watch.Body.Close()
		<-owned.cut
		_ = owned.Close()
		synctest.Wait()
		check.Is(t, net.ErrClosed, check.Err(upgraded.Write([]byte("x"))), "the upgraded connection")
		_, text := must.Get2(read(request, nil))(t)
		check.Same(t, "done", text, "the request")
		synctest.Wait()
		check.Same(t, 0, u.meter.connections.Load()+u.snapshot()[0].inFlight.Load(), "pooled connections and leases at the end")
		check.Same(t, [2]int64{5, 5}, [2]int64{guarded.Load(), released.Load()}, "connections that were guarded, and released")
	})
}

// Unused connections are closed. When a server closes an idle HTTP/1.1 connection it is unknown
// whether it read a request. So no request uses one that was idle for staleIdle, which is below gunicorn's 2 s. Of a
// server that closes them even earlier the endpoint is probed, but no worse a choice than others.
func TestIdle(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		f := newFixture(t, nil)
		s := f.serve(place1, proto, nil)
		e := f.set(healthy(place1))
		for i, method := range []string{http.MethodGet, http.MethodGet, http.MethodPost} {
			must.Get2(f.do(e, method, ""))(t)
			check.Same(t, uint64(i+1), f.Upstream(e).meter.dials[dialOK].Load(), "%s: connections made so far", method)
			for _, want := range []int64{1, 0} { // before the idle timeout, and before gunicorn's
				time.Sleep(900 * time.Millisecond)
				synctest.Wait()
				check.Same(t, want, f.Upstream(e).meter.connections.Load(), "connections")
			}
		}
		must.Get2(f.do(e, http.MethodGet, ""))(t)
		must.Do(t, s.Close())
		synctest.Wait()
		effect := [2]int{f.signals.count(place1), int(f.Upstream(e).snapshot()[0].load())}
		check.Same(t, [2]int{1, 0}, effect, "the server closes first: hints to health, and what its endpoint weighs")
	})
}

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

// A server that ends each body by closing the connection, as in HTTP/1.0, has not failed, nor has one whose handler
// gives up within a body. One whose connection breaks within a body has, and one that stops within a watch.
func TestBodyEndsWithConnection(t *testing.T) {
	const long, short = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbody", "HTTP/1.0 200 OK\r\n\r\nbody"
	for name, tt := range map[string]struct {
		answer                string
		reset, watch, suspect bool
	}{
		"closed": {answer: short}, "broken": {answer: short, reset: true, suspect: true},
		"given up": {answer: long}, "watch": {answer: long, watch: true, suspect: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(cfg *Config) { cfg.Dial = new(net.Dialer).DialContext })
			address := f.kernel(raw(t, tt.answer, tt.reset))
			e := f.set(healthy(address))
			_, body, err := read(f.RoundTrip(e, newRequest(t, http.MethodGet, ""), tt.watch))
			whole := tt.answer == short && !tt.reset
			check.Same(t, true, whole == (err == nil) && (!whole || body == "body"), "got %q, %v", body, err)
			check.Same(t, tt.suspect, f.signals.count(address) == 1, "one signal")
			check.Same(t, tt.suspect, f.Upstream(e).snapshot()[0].load() > 0, "suspect")
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
	_, got, err := read(res, nil)
	check.Is(t, context.Canceled, err, "got %q", got)
}

// The kernel closes a dead connection within the ping timeout.
func TestExpire(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	c := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	defer c.Close()
	unset := &Upstream{}
	unset.view.Store(&view{})
	for _, tt := range []struct {
		ping time.Duration
		want [4]int // user timeout in ms, idle, interval, count
	}{
		{unset.pingTimeout(), [4]int{5000, 2, 1, 3}},
		{20 * time.Second, [4]int{20_000, 8, 4, 3}},
		{time.Second, [4]int{1000, 1, 1, 3}},
	} {
		expire(c, tt.ping)
		check.Same(t, true, option(t, c, unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0, "%v: keepalive", tt.ping)
		for i, name := range []int{unix.TCP_USER_TIMEOUT, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT} {
			check.Same(t, tt.want[i], option(t, c, unix.IPPROTO_TCP, name), "%v: option %d", tt.ping, name)
		}
	}
}

// A connection over HTTP/2 has the same limit.
func TestExpireHTTP2(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Dial = new(net.Dialer).DialContext })
	e := f.Upstream(f.set(healthy(f.kernel(nil)))).snapshot()[0]
	c := must.Get(e.up.dialOwned(t.Context(), e, dialing{protocols: []string{protoH2}, drain: func() {}, cut: func(*Conn) {}}))(t)
	defer c.Close()
	check.Same(t, 5000, option(t, c.socket, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT), "user timeout in ms")
	check.Same(t, 2, option(t, c.socket, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE), "idle time in s")
}

func option(t *testing.T, c net.Conn, level, name int) (got int) {
	raw := must.Get(c.(*net.TCPConn).SyscallConn())(t)
	must.Do(t, raw.Control(func(fd uintptr) { got = must.Get(unix.GetsockoptInt(int(fd), level, name))(t) }))
	return got
}

// The kernel ends a connection whose server is silent, but not one whose server pauses while it
// reads a body: there the request's deadline is the limit.
func TestPausedReader(t *testing.T) {
	var conn *net.TCPConn
	dials := 0
	f := newFixture(t, func(c *Config) {
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			dials++
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			conn, _ = c.(*net.TCPConn)
			return c, err
		}
	})
	e := f.set(healthy(f.kernel(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })))
	for _, tt := range []struct {
		size    int
		unknown bool
		want    int // ms; zero is the kernel's default
	}{{0, false, 5000}, {quickBody + 1, false, 0}, {quickBody, false, 5000}, {quickBody, true, 0}, {0, false, 5000}} {
		r := newRequest(t, http.MethodPost, strings.Repeat("x", tt.size))
		if tt.unknown {
			r.ContentLength = -1
		}
		res := must.Get(f.RoundTrip(e, r, false))(t)
		must.Do(t, res.Body.Close())
		check.Same(t, tt.want, option(t, conn, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT), "body of %d bytes, length unknown: %v: ms", tt.size, tt.unknown)
	}
	check.Same(t, 1, dials, "connections")
}

// A server that answers before it has read the request, and closes, is heard: it may say 413, 414 or 431.
func TestAnswerBeforeTheRequest(t *testing.T) {
	const rounds = 20
	text := strings.Repeat("a", 8<<10)
	for _, tt := range []struct {
		name, head string
		long, body int // bytes of a field and of the body
		broken     bool
	}{
		{name: "a long head", head: "HTTP/1.1 431 No\r\nConnection: close\r\nContent-Length: 8192\r\n\r\n", long: 900 << 10},
		{name: "a long body", head: "HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: 8192\r\n\r\n", body: 4 << 20},
		{name: "without a word", long: 900 << 10, broken: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, func(c *Config) { c.Dial = new(net.Dialer).DialContext })
			l := must.Get(tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{f.pair}}))(t)
			defer l.Close()
			accepted := 0
			go func() { // ends with the listener
				for c, err := l.Accept(); err == nil; c, err = l.Accept() {
					accepted++
					_, _ = io.ReadAtLeast(c, make([]byte, 16<<10), 8<<10)
					if tt.head != "" {
						_, _ = io.WriteString(c, tt.head+text)
					}
					_ = c.(*tls.Conn).NetConn().Close() // a reset, because bytes are unread
				}
			}()
			e := f.set(healthy(l.Addr().String()))
			for n := range rounds {
				r := newRequest(t, http.MethodPost, strings.Repeat("b", tt.body))
				r.Header.Set("X-Long", strings.Repeat("h", tt.long))
				res, err := f.RoundTrip(e, r, false)
				status, got, err := read(res, err)
				broken := err != nil
				must.Be(t, broken == tt.broken && (broken || got == text && strings.Contains(tt.head, strconv.Itoa(status))), "round %d: got %d, %d bytes, %v", n, status, len(got), err)
			}
			check.Same(t, rounds, accepted, "connections")
		})
	}
}
