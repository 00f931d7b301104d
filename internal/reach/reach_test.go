package reach

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestRefusal(t *testing.T) {
	o := &Rules{Self: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.5:6443")}}
	loopback := &Rules{AllowLoopback: true}
	const always = "\x00" // allowed equals want
	for _, tc := range []struct {
		host          string
		port          int32
		want, allowed string // with loopback allowed
	}{
		{host: "10.0.0.1", port: 443},
		{host: "2001:db8::1", port: 443},
		{host: "fd00:ec3::254", port: 443},
		{host: "64:ff9b::a00:1", port: 443},
		{host: "2002:a00:1::1", port: 443},
		{host: "api.example.com", port: 443},
		{host: "10.example", port: 443},
		{host: "10.0.0.5", port: 443},
		{host: "10.0.0.5", port: 6443, want: "10.0.0.5:6443 is this server itself"},
		{host: "::ffff:10.0.0.5", port: 6443, want: "10.0.0.5:6443 is this server itself"},
		{host: "64:ff9b::10.0.0.5", port: 6443, want: "64:ff9b::a00:5 (10.0.0.5):6443 is this server itself"},
		{host: "127.0.0.1", want: "127.0.0.1 is a loopback address"},
		{host: "127.8.8.8", want: "127.8.8.8 is a loopback address"},
		{host: "::1", want: "::1 is a loopback address"},
		{host: "::ffff:127.0.0.1", want: "127.0.0.1 is a loopback address"},
		{host: "64:ff9b::7f00:1", want: "64:ff9b::7f00:1 (127.0.0.1) is a loopback address"},
		{host: "64:ff9b:1::127.0.0.1", want: "64:ff9b:1::7f00:1 (127.0.0.1) is a loopback address"},
		{host: "64:ff9b:1:a9fe:a9:fe00::", want: "64:ff9b:1:a9fe:a9:fe00:: (169.254.169.254) is a link-local address", allowed: always},
		{host: "64:ff9b:1:7f:0:1::", want: "64:ff9b:1:7f:0:1:: (127.0.0.1) is a loopback address"},
		{host: "64:ff9b:1:0:7f:0:100:0", want: "64:ff9b:1:0:7f:0:100:0 (127.0.0.1) is a loopback address"},
		{host: "64:ff9b:1:ff00:a:0:100:1", port: 443},
		{host: "::127.0.0.1", want: "::7f00:1 (127.0.0.1) is a loopback address"},
		{host: "::ffff:0:127.0.0.1", want: "::ffff:0:7f00:1 (127.0.0.1) is a loopback address"},
		{host: "2002:7f00:1::1", want: "2002:7f00:1::1 (127.0.0.1) is a loopback address"},
		{host: "169.254.169.254", want: "169.254.169.254 is a link-local address", allowed: always},
		{host: "64:ff9b::a9fe:a9fe", want: "64:ff9b::a9fe:a9fe (169.254.169.254) is a link-local address", allowed: always},
		{host: "fe80::1%eth0", want: "fe80::1 is a link-local address", allowed: always},
		{host: "fd00:ec2::254", want: "fd00:ec2::254 is an address of the cloud's own services", allowed: always},
		{host: "fd00:ec2::23", want: "fd00:ec2::23 is an address of the cloud's own services", allowed: always},
		{host: "fd20:ce::254", want: "fd20:ce::254 is an address of the cloud's own services", allowed: always},
		{host: "168.63.129.16", want: "168.63.129.16 is an address of the cloud's own services", allowed: always},
		{host: "::ffff:168.63.129.16", want: "168.63.129.16 is an address of the cloud's own services", allowed: always},
		{host: "100.100.100.200", want: "100.100.100.200 is an address of the cloud's own services", allowed: always},
		{host: "0.0.0.0", want: "0.0.0.0 is the unspecified address", allowed: always},
		{host: "::", want: ":: is the unspecified address", allowed: always},
		{host: "ff02::1", want: "ff02::1 is a multicast address", allowed: always},
		{host: "localhost", want: "localhost is a loopback name"},
		{host: "LocalHost.", want: "LocalHost. is a loopback name"},
		{host: "a.localhost", want: "a.localhost is a loopback name"},
		{host: "127.1", want: "127.1 is a number, not a DNS name", allowed: always},
		{host: "0x7f000001", want: "0x7f000001 is a number, not a DNS name", allowed: always},
		{host: "0xg"},
		{host: "2130706433", want: "2130706433 is a number, not a DNS name", allowed: always},
		{host: "", want: "the name is empty", allowed: always},
	} {
		check.Same(t, tc.want, o.Refusal(tc.host, tc.port), "Refusal(%q, %d)", tc.host, tc.port)
		if tc.allowed == always {
			tc.allowed = tc.want
		}
		check.Same(t, tc.allowed, loopback.Refusal(tc.host, tc.port), "with loopback allowed Refusal(%q, %d)", tc.host, tc.port)
	}
}

func TestCheckOfNoAddress(t *testing.T) {
	for _, address := range []string{"", "10.0.0.1", "localhost:443", "10.0.0.1:https"} {
		check.Same(t, true, new(Rules).check(address) != nil, "%q is refused", address)
	}
}

// A refused address is refused under any name, and never connected to.
func TestRefusedAddressesAreNotDialled(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	self := []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), netip.AddrPortFrom(netip.IPv6Loopback(), port)}
	at := func(host string) string {
		return net.JoinHostPort(host, l.Addr().String()[strings.LastIndexByte(l.Addr().String(), ':')+1:])
	}
	for _, tt := range []struct {
		name, address string
		rules         Rules
		// via is the address that an egress proxy must receive. Empty: none.
		via string
		ok  bool
	}{
		{name: "loopback", address: at("127.0.0.1")},
		{name: "loopback by name", address: at("localhost")},
		{name: "unspecified", address: at("0.0.0.0")},
		{name: "link-local", address: "169.254.169.254:443"},
		{name: "mapped", address: at("::ffff:127.0.0.1")},
		{name: "allowed", address: at("127.0.0.1"), rules: Rules{AllowLoopback: true}, via: at("127.0.0.1"), ok: true},
		{name: "allowed by name", address: at("localhost"), rules: Rules{AllowLoopback: true}, via: at("localhost"), ok: true},
		{name: "named by the operator", address: at("127.0.0.1"), rules: Rules{Operator: true}, via: at("127.0.0.1"), ok: true},
		{name: "itself", address: at("127.0.0.1"), rules: Rules{AllowLoopback: true, Operator: true, Self: self}},
		{name: "itself by name", address: at("localhost"), rules: Rules{Operator: true, Self: self}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := tt.rules.Dial(t.Context(), "tcp", tt.address)
			check.Same(t, tt.ok, err == nil, "directly: %v", err)
			if err == nil {
				_ = c.Close()
			}
			var asked []string
			tt.rules.Via = func(ctx context.Context, network, address string) (net.Conn, error) {
				asked = append(asked, address)
				return new(net.Dialer).DialContext(ctx, network, address)
			}
			c, err = tt.rules.Dial(t.Context(), "tcp", tt.address)
			check.Same(t, false, (err == nil) != tt.ok || (tt.via != "") != slices.Contains(asked, tt.via) || (tt.via == "") != (asked == nil), "through a proxy: %v; it got %q, want %q", err, asked, tt.via)
			if err == nil {
				_ = c.Close()
			}
		})
	}
}

// An egress proxy gets addresses that were checked, not names that it may resolve differently.
func TestEgressNamesAreResolvedHere(t *testing.T) {
	var asked []string
	nobody := errors.New("nobody there")
	r := Rules{Via: func(_ context.Context, _, address string) (net.Conn, error) {
		asked = append(asked, address)
		return nil, nobody
	}}
	_, err := r.Dial(t.Context(), "tcp", "[2001:db8::1]:443")
	check.Same(t, true, errors.Is(err, nobody) && slices.Equal(asked, []string{"[2001:db8::1]:443"}), "%v; the proxy got %q", err, asked)
	asked = nil
	// .invalid does not exist (RFC 6761 §6.4). A machine without DNS gets an error of DNS, too.
	_, err = r.Dial(t.Context(), "tcp", "inside.invalid:443")
	check.Same(t, true, errors.As(err, new(*net.DNSError)) && strings.HasPrefix(err.Error(), "dial tcp: lookup ") && !errors.Is(err, nobody) && asked == nil, "an unknown name: %v; the proxy got %q", err, asked)
	check.Same(t, true, check.Err(r.Dial(t.Context(), "tcp", "10.0.0.1")) != nil && asked == nil, "an address without a port is refused; the proxy got %q", asked)
}

// An egress dialer that ignores its context blocks nobody, and its late connection is closed.
func TestPromptVia(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		r := Rules{Via: func(context.Context, string, string) (net.Conn, error) {
			time.Sleep(30 * time.Second)
			return ours, nil
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		c, err := r.Dial(ctx, "tcp", "192.0.2.7:443")
		check.Same(t, true, c == nil && errors.Is(err, context.DeadlineExceeded) && time.Since(began) <= time.Second, "%v, %v after %s", c, err, time.Since(began))
		check.Is(t, io.EOF, check.Err(theirs.Read(make([]byte, 1))), "the late connection is closed")
		c, err = r.Dial(t.Context(), "tcp", "192.0.2.7:443")
		check.Same(t, true, c == ours && err == nil, "%v, %v", c, err)
	})
}

// opened is a connection of a dial. It counts itself while it is open.
type opened struct {
	net.Conn
	by   int
	open *atomic.Int64
}

func (o *opened) Close() error { o.open.Add(-1); return nil }

// Of a name's addresses the first that answers is used, and one that has vanished costs a quarter
// of a second. The other dials end, and no other connection stays open.
func TestFirst(t *testing.T) {
	const ms, limit, never = time.Millisecond, 2 * time.Second, time.Hour
	type attempt struct {
		after time.Duration
		fails bool
	}
	for _, tt := range []struct {
		name     string
		attempts []attempt
		want     string
		took     time.Duration
	}{
		{"the first", []attempt{{after: 100 * ms}, {}}, "0", 100 * ms},
		{"the first, though it is slow", []attempt{{after: 300 * ms}, {after: 100 * ms}}, "0", 300 * ms},
		{"the first has vanished", []attempt{{after: never}, {after: 10 * ms}}, "1", attemptDelay + 10*ms},
		{"two have vanished", []attempt{{after: never}, {after: never}, {after: 10 * ms}}, "2", 2*attemptDelay + 10*ms},
		{"the first refuses", []attempt{{after: 5 * ms, fails: true}, {after: 10 * ms}}, "1", 15 * ms},
		{"one refuses, after one that has vanished", []attempt{{after: never}, {fails: true}, {after: 10 * ms}}, "2", attemptDelay + 10*ms},
		{"all have vanished", []attempt{{after: never}, {after: never}}, "0: context deadline exceeded", limit},
		{"too many refuse", append(slices.Repeat([]attempt{{fails: true}}, maxTried), attempt{}), "0: refused", 0},
		{"all refuse", []attempt{{after: 300 * ms, fails: true}, {after: 10 * ms, fails: true}}, "0: refused", 300 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				var open, hanging atomic.Int64
				began := time.Now()
				c, err := first(ctx, nil, len(tt.attempts), func(ctx context.Context, i int) (net.Conn, error) {
					switch a := tt.attempts[i]; {
					case a.after == never:
						hanging.Add(1)
						defer hanging.Add(-1)
						<-ctx.Done()
						return nil, fmt.Errorf("%d: %w", i, ctx.Err())
					case a.fails:
						<-time.After(a.after)
						return nil, fmt.Errorf("%d: refused", i)
					default:
						<-time.After(a.after) // it may come too late
						open.Add(1)
						return &opened{by: i, open: &open}, nil
					}
				})
				check.Same(t, tt.took, time.Since(began), "duration")
				synctest.Wait()
				check.Same(t, 0, hanging.Load(), "dials that go on")
				got := fmt.Sprint(err)
				if o, ok := c.(*opened); ok {
					got = fmt.Sprint(o.by)
					_ = o.Close()
				}
				check.Same(t, tt.want, got, "result")
				<-time.After(limit)
				check.Same(t, 0, open.Load(), "connections left")
			})
		})
	}
}

// slow is a context that ends before those below it, as all do.
type slow struct {
	context.Context
	done chan struct{}
}

func (s slow) Done() <-chan struct{} { return s.done }

func (s slow) Err() error {
	select {
	case <-s.done:
		return context.Canceled
	default:
		return nil
	}
}

// A dial that is given up has an error at once, even if the contexts below have not ended yet.
func TestGivenUpDialHasAnError(t *testing.T) {
	for range 1000 {
		s := slow{t.Context(), make(chan struct{})}
		r := Rules{Via: func(ctx context.Context, _, _ string) (net.Conn, error) {
			close(s.done)
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		c, err := r.Dial(s, "tcp", "192.0.2.7:443")
		must.Be(t, c == nil && errors.Is(err, context.Canceled), "%v, %v", c, err)
	}
}

// A panic in a handshake, as a server's certificate may cause, is an error, and the connection is closed.
func TestHandshakePanicIsAnError(t *testing.T) {
	near, far := net.Pipe()
	odd := &tls.Config{Rand: oddReader{}}
	_, err := Handshake(t.Context(), near, "a.example:443", odd, slog.New(slog.DiscardHandler))
	check.Same(t, "handshake panicked: odd", fmt.Sprint(err), "error")
	check.Same(t, "a.example", odd.ServerName, "name")
	_, err = far.Read(make([]byte, 1))
	check.Same(t, true, errors.Is(err, io.EOF), "afterwards the peer reads %v", err)
}

// An error of a handshake is short, whatever the server's certificate says.
func TestHandshakeErrorIsShort(t *testing.T) {
	uri := "%zz" + strings.Repeat("a", 997) // 1,000 bytes, with a bad escape
	pair := pki.NewCA("ca").Issue(pki.Leaf{Names: []string{uri}}).TLS()
	name, bad := []byte("\x82\x82\x03\xe8%zz"), []byte("\x86\x82\x03\xe8%zz") // the type, the length, and the beginning
	pair.Certificate[0] = bytes.Replace(pair.Certificate[0], name, bad, 1)
	l := bufconn.Listen(64 << 10)
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}}).HandshakeContext(t.Context())
			c.Close()
		}
		ended <- err
	}()
	near := must.Get(l.DialContext(t.Context()))(t)
	_, err := Handshake(t.Context(), near, "a.example:443", &tls.Config{}, slog.New(slog.DiscardHandler))
	check.Has(t, fmt.Sprint(err), "x509: cannot parse URI")
	check.Same(t, 1<<10, len(err.Error()), "bytes of the error")
	must.Be(t, <-ended != nil, "the server's handshake has succeeded")
}

type oddReader struct{}

func (oddReader) Read([]byte) (int, error) { panic("odd") }
