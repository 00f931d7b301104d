package backend

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
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
	u := f.Upstream(f.set(healthy(s.Listener.Addr().String())))
	c := must.Get(u.dialH2(t.Context(), s.Listener.Addr().String(), dialing{wrap: func(c net.Conn) net.Conn { conn = c; return c }}))(t)
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
