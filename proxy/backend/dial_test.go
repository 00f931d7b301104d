package backend

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// DialUpgrade uses HTTP/1.1 even if the server prefers HTTP/2, skips unreachable endpoints, and
// holds a lease until the connection is closed.
func TestDialUpgrade(t *testing.T) {
	f := newFixture(t, nil)
	f.serve(place2, protoH2, nil)
	e := f.set(healthy(place1), registry.Endpoint{Address: place2})
	c := must.Get(f.Upstream(e).DialUpgrade(t.Context(), nil))(t)
	check.Same(t, false, c.ConnectionState().NegotiatedProtocol == protoH2, "HTTP/2")
	check.Same(t, place2, c.Address(), "the endpoint")
	inFlight := func() (n int64) {
		for _, e := range f.Upstream(e).snapshot() {
			n += e.inFlight.Load()
		}
		return n
	}
	check.Same(t, 1, inFlight(), "leases held")
	check.Same(t, engine.ReasonLost, reasonOf(c.Failed(io.ErrUnexpectedEOF)), "an early end")
	check.Same(t, engine.ReasonBadResponse, reasonOf(c.Failed(errors.New("no HTTP"))), "no HTTP")
	_ = c.Close()
	_ = c.Close()
	check.Same(t, 0, inFlight(), "leases held after closing")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check.Is(t, context.Canceled, check.Err(f.Upstream(e).DialUpgrade(ctx, nil)), "a client that has gone")
}

// Where Guard allows it, a connection is kept if only the trust or a limit differs. Another service or ping timeout
// drains it: older connections finish their requests. An annotation turns HTTP/2 off, also for existing connections.
func TestChangesOfABackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil) // whose Guard allows it
		s := f.serve(place1, protoH2, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
		for i, tt := range []struct {
			backend registry.Backend
			conns   int64 // of requests, which use HTTP/1.1, and of Learn
		}{
			{registry.Backend{Service: "svc"}, 2},
			{registry.Backend{Service: "svc", CABundle: "other"}, 2},
			{registry.Backend{Service: "other"}, 4}, // another Service may speak another protocol
			{registry.Backend{Service: "other", PingTimeout: 3 * time.Second}, 5},
			{registry.Backend{Service: "other", PingTimeout: time.Second}, 6},
			{registry.Backend{Service: "other", HTTP1: true}, 7},
		} {
			f.backend = &tt.backend
			f.policy.MaxInFlight = 10 + i // makes a new entry each time
			e := f.set(healthy(place1))
			must.Do(t, f.Upstream(e).Learn(t.Context(), 0))
			check.Same(t, !tt.backend.HTTP1, f.Upstream(e).HTTP2(), "%+v: HTTP/2", tt.backend)
			_, got := must.Get2(f.do(e, http.MethodGet, ""))(t)
			check.Same(t, "HTTP/1.1", got, "%+v: the protocol of a request", tt.backend)
			check.Same(t, tt.conns, s.conns.Load(), "connections after %d tables", i+1)
			check.Same(t, cmp.Or(tt.backend.PingTimeout, defaultPing), f.Upstream(e).pingTimeout(), "ping timeout")
		}
	})
}

// An unusable bundle does not count as a failure of the endpoint. Without one there is nothing to reach.
func TestNoTrust(t *testing.T) {
	f := newFixture(t, func(cfg *Config) {
		cfg.TLS = func(string, *registry.Backend) (*tls.Config, error) { return nil, errors.New("bad bundle") }
	})
	_, _, err := f.do(f.set(healthy("10.0.0.1:443")), http.MethodGet, "")
	check.Same(t, true, reasonOf(err) == engine.ReasonDial && strings.Contains(err.Error(), "bad bundle"), "got %v", err)
	check.Same(t, 0, len(f.signals.list), "signals %v", f.signals.list)
	_, _, err = f.do(f.set(), http.MethodGet, "")
	check.Same(t, engine.ReasonDial, reasonOf(err), "without an endpoint")
}

// What a probe has found out costs no handshake any more. That it spoke HTTP/1.1 says nothing of other endpoints.
func TestReportedProtocol(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		f := newFixture(t, nil)
		s := f.serve(place1, proto, nil)
		e := f.set(healthy(place1))
		f.Report(registry.Report{Name: e.Name, Backend: e.Backend, Endpoint: e.Endpoints[0], HTTP2: proto == protoH2})
		u, learned := f.Upstream(e), map[string]int64{protoH1: 1, protoH2: 0}
		check.Same(t, proto == protoH2, u.HTTP2(), "HTTP/2 by the probe")
		must.Do(t, u.Learn(t.Context(), 0))
		check.Same(t, learned[proto], s.conns.Load(), "handshakes to learn it")
	})
}

// The protocol is found out anew when an endpoint has come, and when one has left: it may have been the last old one.
func TestProtocolAfterARollout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		f.serve(place1, protoH1, nil)
		f.serve(place2, protoH2, nil)
		old, fresh := healthy(place1), registry.Endpoint{Address: place2}
		for i, endpoints := range [][]registry.Endpoint{{old}, {old, fresh}, {fresh}} {
			u := f.Upstream(f.set(endpoints...))
			must.Do(t, u.Learn(t.Context(), 0))
			check.Same(t, i == 2, u.HTTP2(), "HTTP/2 of %v", endpoints)
		}
	})
}

// The engine learns which backends speak HTTP/2, over one connection for all who ask, and wraps each connection once.
func TestFrames(t *testing.T) {
	bothProtocols(t, func(t *testing.T, proto string) {
		f := newFixture(t, nil)
		f.before = func(context.Context, string) { time.Sleep(time.Second) } // until all ask
		s := f.serve(place1, proto, nil)
		u := f.Upstream(f.set(healthy(place1)))
		check.Same(t, false, u.HTTP2(), "HTTP/2 before the first connection")
		var asking errgroup.Group
		for range 10 {
			asking.Go(func() error { return u.Learn(t.Context(), 0) })
		}
		must.Do(t, asking.Wait())
		check.Same(t, 1, s.conns.Load(), "connections of ten concurrent calls")
		check.Same(t, proto == protoH2, u.HTTP2(), "HTTP/2")
		u.agreed.Store(new("h2")) // as for another endpoint with HTTP/2
		_, closed, err := Dial(t.Context(), u.at(place1).forEngine())
		if err == nil {
			closed()
		}
		want := map[string]engine.Reason{protoH1: engine.ReasonDial, protoH2: engine.ReasonNone}[proto]
		check.Same(t, want, reasonOf(err), "why it fails")
		check.Same(t, proto == protoH2, u.HTTP2(), "HTTP/2 after another dial")
	})
}

// Errors of real handshakes are classified.
func TestHandshakeClasses(t *testing.T) {
	n := newNetwork(t)
	well := n.kernel(nil)
	n.silent(place1, true)
	type dial = func(ctx context.Context, network, address string) (net.Conn, error)
	says := func(text string) dial {
		return func(context.Context, string, string) (net.Conn, error) { return answers(text), nil }
	}
	hangs := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return n.dial(context.WithoutCancel(ctx), network, place1) // it is the handshake that is late
	}
	for _, tt := range []struct {
		want, protocol string
		change         func(*tls.Config)
		dial           dial // nil: to a good server
		patience       time.Duration
	}{
		{want: "unknown_authority", change: func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }},
		{want: "hostname", change: func(c *tls.Config) { c.ServerName = "other.example.org" }},
		{want: "expired", change: func(c *tls.Config) { c.Time = func() time.Time { return time.Now().AddDate(200, 0, 0) } }},
		{want: "alert", protocol: "spdy/3"},
		{want: "not_tls", dial: says(notTLS)},
		{want: "closed", dial: says("")},
		{want: "timeout", dial: hangs, patience: 10 * time.Millisecond},
	} {
		t.Run(tt.want, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(tt.patience, time.Hour))
			defer cancel()
			o := newShared(slog.New(slog.DiscardHandler), nil)
			defer o.stop()
			to := target{dial: new(net.Dialer).DialContext, signal: func(string, error) {}, tls: func() (*tls.Config, error) {
				c, err := n.trust()
				if tt.change != nil {
					tt.change(c)
				}
				return c, err
			}}
			if tt.dial != nil {
				to.dial = tt.dial
			}
			u := newUpstream("test", o, to)
			check.Same(t, true, check.Err(u.dialOwned(ctx, newEndpoint(u, well), dialing{protocols: []string{cmp.Or(tt.protocol, protoH1)}})) != nil, "the handshake fails")
			for i, class := range handshakeClasses {
				check.Same(t, class == tt.want, u.meter.handshakes[i].Load() == 1, "%s is counted", class)
			}
		})
	}
}

// notTLS is what a server says that does not speak TLS.
const notTLS = "220 mail.example.com ESMTP\r\n"

// answers connects to a server that reads once, answers with a text, and closes the connection.
func answers(text string) net.Conn {
	a, b := net.Pipe()
	go func() { // ends when a is closed
		defer b.Close()
		_, _ = b.Read(make([]byte, 16<<10))
		_, _ = io.WriteString(b, text)
	}()
	return a
}

// A request is sent and answered as it is: nothing is added, decoded or followed.
func TestRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil)
		s := f.serve(place1, protoH2, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Encoding", "gzip") // untrue, and must not matter
			w.Header().Set("Location", "https://elsewhere/")
			w.WriteHeader(http.StatusTemporaryRedirect)
			_, _ = fmt.Fprint(w, r.Method, r.Proto, string(b), r.Header["User-Agent"], r.Header["Accept-Encoding"])
		})
		e := f.set(healthy(place1))
		for range 3 {
			status, text := must.Get2(f.do(e, http.MethodPost, "body"))(t)
			check.Same(t, "307 POSTHTTP/1.1body[] []", fmt.Sprint(status, " ", text), "the answer")
		}
		check.Same(t, 1, s.conns.Load(), "connections of three requests")
	})
}

// A server whose chain panics in verification (like CVE-2025-58188 in crypto/x509) is unreachable:
// dials run on goroutines of their own, where a panic would end the process.
func TestServersChainThatPanics(t *testing.T) {
	f := newFixture(t, func(c *Config) {
		trusting := c.TLS
		c.TLS = func(_ string, b *registry.Backend) (*tls.Config, error) {
			tc, err := trusting("", b)
			tc.VerifyConnection = func(tls.ConnectionState) error { panic("verifying") }
			return tc, err
		}
	})
	f.serve(place1, protoH2, nil)
	e := f.set(healthy(place1))
	_, _, err := f.do(e, http.MethodGet, "")
	check.Same(t, engine.ReasonDial, reasonOf(err), "a request")
	check.Same(t, engine.ReasonDial, reasonOf(check.Err(f.Upstream(e).DialUpgrade(t.Context(), nil))), "an upgrade")
}

// A backend on the default port may know its name only without it.
func TestHost(t *testing.T) {
	for address, want := range map[string]string{"a.io:443": "a.io", "[::1]:443": "[::1]:443", "10.0.0.1:443": "10.0.0.1:443", "a.io:1443": "a.io:1443", "10.0.0.1:6443": "10.0.0.1:6443"} {
		e := &endpoint{address: address, up: newUpstream("a", newShared(slog.New(slog.DiscardHandler), nil), target{})}
		plain := (&call{req: &http.Request{URL: &url.URL{Path: "/apis"}, Header: http.Header{}}}).outgoing(t.Context(), e)
		check.Same(t, [3]string{want, want, want}, [3]string{plain.Host, e.forEngine().Host, (&Conn{at: e}).Host()}, "hosts of %s", address)
	}
}
