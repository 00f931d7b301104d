package front

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const (
	v1    = "PROXY TCP4 192.0.2.1 192.0.2.9 1111 443\r\n"
	magic = "\r\n\r\n\x00\r\nQUIT\n"
	v2    = magic + "\x21\x11\x00\x0c\xc0\x00\x02\x01\xc0\x00\x02\x09\x04\x57\x01\xbb"
)

func networks(c *Config) {
	c.Balancers = []net.IPNet{{IP: net.IP{127, 0, 0, 1}, Mask: net.CIDRMask(32, 32)}, {IP: net.IPv4(10, 0, 0, 0), Mask: net.CIDRMask(104, 128)}}
}

// announced is a client's connection whose first write has a header before it: one segment.
type announced struct {
	net.Conn
	header string
}

func (a *announced) Write(b []byte) (int, error) {
	n, err := a.Conn.Write(append([]byte(a.header), b...))
	n -= len(a.header)
	a.header = ""
	return n, err
}

// Behind a load balancer, handlers see the client that the header names, over both protocols; the engine takes the
// socket. What comes with the header is not lost.
func TestIntroduced(t *testing.T) {
	type connKey struct{}
	s := serve(t, 100, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.RemoteAddr)
		below := r.Context().Value(connKey{}).(interface{ NetConn() net.Conn }).NetConn().(interface{ NetConn() net.Conn }).NetConn().(*placed)
		err := below.SetReadDeadline(time.Time{}) // of a socket that the engine has duplicated and closed
		check.Same(t, r.ProtoMajor == 2, errors.Is(err, net.ErrClosed), "%s: the engine has the socket", r.Proto)
		if c, ok := r.Context().Value(plainKey{}).(*plain); ok {
			check.Same(t, bound.Stranger(r.RemoteAddr).AnyConn(), c.from, "whom its bounds count for")
		}
	}), networks, func(c *Config) {
		c.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		}
	})
	for _, tt := range []struct {
		name, say string
		from      string // "127.0.0.1"
		want      string // empty for the connection's own
	}{
		{name: "version 1", say: v1, want: "192.0.2.1:1111"},
		{name: "version 1, IPv6", say: "PROXY TCP6 2001:db8:: ::1 1111 443\r\n", want: "[2001:db8::]:1111"},
		{name: "version 1, unknown", say: "PROXY UNKNOWN\r\n"},
		{name: "version 2", say: v2, want: "192.0.2.1:1111"},
		{name: "version 2, a mapped address", say: magic + "\x21\x21\x00\x24" + strings.Repeat(string(net.IPv4(192, 0, 2, 1)), 2) + "\x04\x57\x01\xbb", want: "192.0.2.1:1111"},
		{name: "version 2, with more than is read at once", say: strings.Replace(v2, "\x00\x0c", "\x07\xd0", 1) + "\x04\x07\xc1" + strings.Repeat("x", 1985), want: "192.0.2.1:1111"},
		{name: "a check of the balancer", say: magic + "\x20\x00\x00\x00"},
		{name: "a check that names an address", say: strings.Replace(v2, "\x21", "\x20", 1)},
		{name: "a Unix socket", say: magic + "\x21\x31\x00\xd8" + strings.Repeat("x", 216)},
		{name: "a datagram", say: strings.Replace(v2, "\x11", "\x12", 1)},
		{name: "no balancer", from: "127.0.0.2"},
	} {
		for _, protocol := range []string{"h2", "http/1.1"} {
			var own string
			transport := &http.Transport{TLSClientConfig: s.client.Clone(), ForceAttemptHTTP2: protocol == "h2", DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				from := &net.TCPAddr{IP: net.ParseIP(tt.from)}
				conn, err := (&net.Dialer{LocalAddr: from}).DialContext(ctx, network, address)
				if err == nil {
					own = conn.LocalAddr().String()
				}
				return &announced{conn, tt.say}, err
			}}
			for range 2 { // on one connection
				res, err := (&http.Client{Transport: transport}).Get("https://" + s.listener.Addr().String())
				must.Be(t, err == nil, "%s: %s: %v", tt.name, protocol, err)
				body := must.Get(io.ReadAll(res.Body))(t)
				_ = res.Body.Close()
				check.Same(t, cmp.Or(tt.want, own), string(body), "%s: %s: the client", tt.name, protocol)
			}
			transport.CloseIdleConnections()
		}
	}
}

// Without a valid header from a load balancer, or with one from elsewhere, a connection fails at once, or when the time
// for a handshake is over. The log says why.
func TestNotIntroduced(t *testing.T) {
	hello := "\x16\x03\x01\x00\x05hello"
	for _, tt := range []struct {
		name, say string
		from      string // "10.0.0.1"
		after     time.Duration
		log       string
	}{
		{name: "none", say: hello, log: `signature not present`},
		{name: "nothing", after: readHeaderTimeout, log: `PROXY protocol: context deadline exceeded`},
		{name: "half of version 1", say: v1[:20], log: `can't read version 1`},
		{name: "half of version 2", say: v2[:20], after: readHeaderTimeout, log: `PROXY protocol: context deadline exceeded`},
		{name: "a header and no handshake", say: v2, after: readHeaderTimeout, log: `client=192.0.2.1:1111 cause=timeout err="context deadline exceeded`},
		{name: "version 1 without end", say: "PROXY UNKNOWN" + strings.Repeat(" ", 100), log: `must be 107 bytes`},
		{name: "version 2 that is too long", say: magic + "\x21\x11\xff\xff", log: `invalid length`},
		{name: "version 2 that is too short", say: magic + "\x21\x11\x00\x01x", log: `invalid length`},
		{name: "an undefined family", say: magic + "\x21\x13\x00\x0c" + v2[16:], log: `unsupported address family`},
		{name: "two headers", say: v1 + v1, log: `client=192.0.2.1:1111 cause=proxy_header`},
		{name: "version 1 from elsewhere", from: "192.0.2.3", say: v1, log: `client=192.0.2.3:1 cause=proxy_header`},
		{name: "version 2 from elsewhere", from: "192.0.2.3", say: v2, log: `client=192.0.2.3:1 cause=proxy_header`},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log logbook.Book
			c := Config{Listener: &Listener{handshakes: newHandshakes()}, TLS: &tls.Config{MinVersion: tls.VersionTLS12}, Frames: h2.New(h2.Config{}), Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
			networks(&c)
			p := New(c)
			defer p.end()
			ours, theirs := net.Pipe()
			go func() { _, _ = io.WriteString(theirs, tt.say); _, _ = io.Copy(io.Discard, theirs) }()
			begun, left := time.Now(), false
			p.greet(&placed{Conn: piped{ours, cmp.Or(tt.from, "10.0.0.1")}, in: ours, leave: func() { left = true }})
			check.Same(t, tt.after, time.Since(begun), "%s: how long it lasts", tt.name)
			synctest.Wait() // another goroutine may close it
			check.Same(t, true, left && p.cfg.Memory.Held() == 0, "%s: all is given back", tt.name)
			check.Same(t, true, strings.Contains(log.String(), tt.log), "%s: the log has\n%s", tt.name, log.String())
		})
	}
}

type said struct {
	piped
	*bytes.Reader
}

func (s said) Read(b []byte) (int, error) { return s.Reader.Read(b) }

// Whatever a load balancer sends: TLS gets every byte after the header, and its first read all that was read with it.
func FuzzIntroduction(f *testing.F) {
	f.Add([]byte{})
	for _, header := range []string{v1, v2, magic + "\x20\x00\x00\x00", "PROXY UNKNOWN\r\n", magic + "\x21\x31\x00\xd8" + strings.Repeat("x", 216)} {
		f.Add([]byte(header + "rest"))
		f.Add([]byte(header + strings.Repeat("rest", 1<<10)))
	}
	c := Config{}
	networks(&c)
	p := &Port{cfg: c}
	f.Fuzz(func(t *testing.T, data []byte) {
		conn := said{piped{nil, "10.0.0.1"}, bytes.NewReader(data)}
		raw := &placed{Conn: conn, in: conn}
		if err := p.introduce(t.Context(), raw); err != nil {
			check.Same(t, true, errors.Is(err, errIntroduction) || errors.Is(err, errUnused) && len(data) == 0, "the error is %v", err)
			return
		}
		n := bytes.IndexByte(data, '\n') + 1
		if strings.HasPrefix(string(data), magic) {
			n = 16 + int(binary.BigEndian.Uint16(data[14:]))
		}
		check.Is(t, nil, check.Err(netip.ParseAddrPort(raw.RemoteAddr().String())), "the client %s", raw.RemoteAddr())
		for _, size := range []int{2 << 10, 5} { // earlyBuffer of proxy/h2, and what is left of a record
			b := make([]byte, size)
			k, _ := raw.Read(b)
			must.Be(t, k >= min(len(data)-n, 1) && bytes.Equal(b[:k], data[n:n+k]) && conn.Len() == len(data)-n-k, "after %d bytes of %d, TLS reads %q, and %d bytes are left", n, len(data), b[:k], conn.Len())
			n += k
		}
	})
}
