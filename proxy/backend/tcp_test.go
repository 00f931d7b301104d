package backend

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

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
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var on int
		var got [4]int
		must.Do(t, raw.Control(func(fd uintptr) {
			for i, option := range []int{unix.TCP_USER_TIMEOUT, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT} {
				if got[i], err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil {
					t.Error(err)
				}
			}
			on, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		}))
		if got != tt.want || on == 0 || err != nil {
			t.Errorf("%v: got %v, want %v; keepalive %d, %v", tt.ping, got, tt.want, on, err)
		}
	}
}

// A connection over HTTP/2 has the same limit.
func TestExpireHTTP2(t *testing.T) {
	var conn net.Conn
	f := newFixture(t, func(c *Config) { c.Dial = new(net.Dialer).DialContext })
	s := httptest.NewUnstartedServer(nil)
	s.TLS, s.EnableHTTP2 = &tls.Config{Certificates: []tls.Certificate{f.pair}}, true
	s.StartTLS()
	t.Cleanup(s.Close)
	e := f.Upstream(f.set(healthy(s.Listener.Addr().String()))).snapshot()[0]
	c := must.Get(e.dialH2(t.Context(), dialing{drain: func() {}, cut: func(*Conn) {}, wrap: func(c net.Conn) net.Conn { conn = c; return c }}))(t)
	defer c.Close()
	check.Same(t, 5000, option(t, conn, unix.TCP_USER_TIMEOUT), "user timeout in ms")
	check.Same(t, 2, option(t, conn, unix.TCP_KEEPIDLE), "idle time in s")
}

func option(t *testing.T, c net.Conn, name int) (got int) {
	raw := must.Get(c.(*net.TCPConn).SyscallConn())(t)
	must.Do(t, raw.Control(func(fd uintptr) { got = must.Get(unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, name))(t) }))
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
		check.Same(t, tt.want, option(t, conn, unix.TCP_USER_TIMEOUT), "body of %d bytes, length unknown: %v: ms", tt.size, tt.unknown)
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
				if broken := err != nil; broken != tt.broken || !broken && (got != text || !strings.Contains(tt.head, strconv.Itoa(status))) {
					t.Fatalf("round %d: got %d, %d bytes, %v", n, status, len(got), err)
				}
			}
			check.Same(t, rounds, accepted, "connections")
		})
	}
}
