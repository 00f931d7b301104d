package front

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// counted are the failed handshakes by cause, without those that did not happen.
func (h *handshakes) counted() map[string]float64 {
	counts := map[string]float64{}
	for _, c := range h.all() {
		if c.count > 0 {
			counts[c.name] = c.count
		}
	}
	return counts
}

// Failed handshakes of real clients are counted by cause. A balancer's check, and a client that is served, are none.
func TestFailedHandshakes(t *testing.T) {
	says := func(text string) func(net.Conn, *tls.Config) {
		return func(c net.Conn, _ *tls.Config) { _, _ = io.WriteString(c, text) }
	}
	// shakes is a client whose configuration is changed, and which says why it fails.
	shakes := func(change func(*tls.Config)) func(net.Conn, *tls.Config) {
		return func(c net.Conn, base *tls.Config) {
			change(base)
			client := tls.Client(c, base)
			_ = client.Handshake()
			_, _ = client.Read(make([]byte, 1)) // over TLS 1.3, the server's alert comes after the client's handshake
		}
	}
	for name, tt := range map[string]struct {
		client func(net.Conn, *tls.Config)
		want   string // "" means that it is no failure
	}{
		"unknown CA":              {shakes(func(c *tls.Config) { c.RootCAs = pki.NewCA("another").Pool() }), "certificate_refused"},
		"unknown CA over TLS 1.2": {shakes(func(c *tls.Config) { c.RootCAs, c.MaxVersion = pki.NewCA("another").Pool(), tls.VersionTLS12 }), "certificate_refused"},
		"another name":            {shakes(func(c *tls.Config) { c.ServerName = "example.com" }), "certificate_refused"},
		"expired":                 {shakes(func(c *tls.Config) { c.Time = func() time.Time { return time.Now().AddDate(100, 0, 0) } }), "certificate_refused"},
		"old versions only":       {shakes(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }), "version"},
		"no common cipher": {shakes(func(c *tls.Config) {
			c.CipherSuites, c.MaxVersion = []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA}, tls.VersionTLS12
		}), "cipher"},
		"no common key exchange":   {shakes(func(c *tls.Config) { c.CurvePreferences, c.MinVersion = []tls.CurveID{tls.CurveP521}, tls.VersionTLS13 }), "cipher"},
		"no common application":    {shakes(func(c *tls.Config) { c.NextProtos = []string{"deadline exceeded"} }), "other"},
		"HTTP":                     {says("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "plain_http"},
		"HTTP, a write":            {says("DELETE / HTTP/1.1\r\nHost: x\r\n\r\n"), "plain_http"},
		"the PROXY protocol":       {says("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"), "proxy_header"},
		"version 2 of it":          {says("\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"), "proxy_header"},
		"SSH":                      {says("SSH-2.0-OpenSSH_9.9\r\n"), "not_tls"},
		"part of a record":         {says("\x16\x03\x01"), "closed"},
		"an alert as first record": {says("\x15\x03\x01\x00\x02\x02\x30"), "certificate_refused"},
		"hangs up after the hello": {func(c net.Conn, base *tls.Config) { _ = tls.Client(&closing{Conn: c}, base).Handshake() }, "closed"},
		"a balancer's check":       {func(net.Conn, *tls.Config) {}, ""},
		"a balancer's client":      {says("\x16\x03\x01\x00\x05hello"), "proxy_header"},
		"a check":                  {func(net.Conn, *tls.Config) {}, ""},
		"a balancer's that resets": {func(c net.Conn, _ *tls.Config) { _ = c.(*net.TCPConn).SetLinger(0) }, ""},
		"a check that resets":      {func(c net.Conn, _ *tls.Config) { _ = c.(*net.TCPConn).SetLinger(0) }, ""},
		"served":                   {func(c net.Conn, base *tls.Config) { _ = tls.Client(c, base).Handshake() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, client := secured()
			server.CurvePreferences = []tls.CurveID{tls.X25519}
			l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: 8}))(t)
			p := New(Config{Listener: l, Frames: h2.New(h2.Config{}), ConnContext: same, TLS: server})
			if strings.HasPrefix(name, "a balancer's") {
				p.cfg.Balancers = []net.IPNet{{IP: net.IPv4(127, 0, 0, 0), Mask: net.CIDRMask(8, 32)}}
			}
			conn, greeted := must.Get(net.Dial("tcp", l.Addr().String()))(t), make(chan bool)
			go func() { defer close(greeted); p.greet(must.Get(l.Accept())(t)) }()
			tt.client(conn, client)
			_ = conn.Close()
			if name == "served" {
				_ = p.Close() // nobody takes the connection
			}
			<-greeted
			defer l.Close()
			want := map[string]float64{}
			if tt.want != "" {
				want[tt.want] = 1
			}
			check.Same(t, fmt.Sprint(want), fmt.Sprint(l.counted()), "failures by cause")
			lines := l.Failing()
			check.Same(t, true, len(lines) == len(want) && (len(lines) == 0 || strings.Contains(lines[0], conn.LocalAddr().String())), "%q says what fails, and for whom", lines)
		})
	}
}

// closing is a connection whose client hangs up when it has an answer.
type closing struct{ net.Conn }

func (c *closing) Read(p []byte) (int, error) {
	_, _ = c.Conn.Read(p)
	return 0, io.EOF
}

// A handshake that does not end is counted when its time is over, one that this port ends is not. The most frequent
// cause comes first, and those that were long ago are forgotten.
func TestSilentHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := plaintext(t, hold.New(0), nil)
		l := p.cfg.Listener
		greet := func(says string) {
			ours, theirs := net.Pipe()
			t.Cleanup(func() { _ = theirs.Close() })
			go p.greet(&placed{Conn: piped{ours, "192.0.2.1"}, in: ours, leave: func() {}})
			_, _ = io.WriteString(theirs, says)
		}
		for _, says := range []string{"SSH-2.0-x", "\x16", "\x16", ""} {
			greet(says)
		}
		time.Sleep(readHeaderTimeout)
		synctest.Wait()
		check.Same(t, "map[not_tls:1 timeout:3]", fmt.Sprint(l.counted()), "failures by cause")
		lines := l.Failing()
		check.Same(t, true, len(lines) == 2 && strings.HasPrefix(lines[0], "3 TLS handshakes failed in 32s at port , the last with 192.0.2.1:1: the client did not end it in 32s"), "%q", lines)
		greet("\x16")
		synctest.Wait()
		_ = p.Close()
		synctest.Wait()
		check.Same(t, 3, l.counted()["timeout"]+l.counted()["other"]+l.counted()["closed"], "failures after the end of the port")
		time.Sleep(time.Hour)
		check.Same(t, 0, len(l.Failing()), "causes of the last hour")
	})
}
