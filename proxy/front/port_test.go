package front

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Shutdown lets requests finish, over both protocols, and aborts those that take too long.
func TestShutdown(t *testing.T) {
	for _, protocol := range []string{"h2", "http/1.1"} {
		for _, finishes := range []bool{true, false} {
			name := protocol + " cut"
			if finishes {
				name = protocol + " finishes"
			}
			t.Run(name, func(t *testing.T) {
				begun, finish := make(chan struct{}), make(chan struct{})
				handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, "first")
					_ = http.NewResponseController(w).Flush()
					close(begun)
					select {
					case <-finish:
						_, _ = io.WriteString(w, " and second")
					case <-r.Context().Done():
					}
				})
				p, address, client := servedPort(t, handler)
				client.NextProtos = []string{protocol}
				transport := &http.Transport{TLSClientConfig: client, ForceAttemptHTTP2: protocol == "h2"}
				t.Cleanup(transport.CloseIdleConnections)
				res := must.Get((&http.Client{Transport: transport}).Get("https://" + address))(t)
				defer res.Body.Close()
				<-begun
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- p.Shutdown(ctx, 0) }()
				must.Soon(t, 10*time.Second, "the port takes no new connections", func() bool {
					conn, err := (&tls.Dialer{Config: client}).DialContext(t.Context(), "tcp", address)
					if err == nil {
						_ = conn.Close()
					}
					return err != nil
				})
				if finishes {
					close(finish)
				} else {
					cancel()
				}
				body, err := io.ReadAll(res.Body)
				if whole := err == nil && string(body) == "first and second"; whole != finishes {
					t.Errorf("read %q, %v", body, err)
				}
				if err := <-ended; finishes != (err == nil) || !finishes && !errors.Is(err, context.Canceled) {
					t.Errorf("Shutdown: %v", err)
				}
			})
		}
	}
}

// A port that keeps no connections closes idle ones.
func TestKeep(t *testing.T) {
	p, address, client := servedPort(t, http.NotFoundHandler())
	conn := must.Get((&tls.Dialer{Config: client}).DialContext(t.Context(), "tcp", address))(t)
	defer conn.Close()
	must.Do(t, served(conn.(*tls.Conn), "http/1.1"))
	p.Keep(false)
	must.Do(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	must.Get(io.ReadAll(conn))(t)
}

// Serve returns an error if its listener fails.
func TestServeFails(t *testing.T) {
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: 100}))(t)
	_ = l.Close()
	p := New(Config{Listener: l, TLS: &tls.Config{Certificates: make([]tls.Certificate, 1), MinVersion: tls.VersionTLS12}, Frames: h2.New(h2.Config{})})
	if err := p.Serve(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve: %v", err)
	}
}

// servedPort answers every request with one handler, over both protocols.
func servedPort(t *testing.T, handler http.Handler) (p *Port, address string, client *tls.Config) {
	t.Helper()
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: 100}))(t)
	p, client = serve(t, l, h2.Plan{Serve: handler}, handler)
	return p, l.Addr().String(), client
}

// serve runs a port that answers HTTP/2 requests by a plan, and others with a handler.
func serve(t *testing.T, l *Listener, plan h2.Plan, handler http.Handler) (*Port, *tls.Config) {
	t.Helper()
	frames := h2.New(h2.Config{Decide: func(*h2.ConnInfo, *h2.Head, func(h2.Plan)) (h2.Plan, bool) { return plan, true }})
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = frames.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-stopped })

	ca := pki.NewCA("serving")
	tc := &tls.Config{
		Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
	}
	p := New(Config{Listener: l, TLS: tc, Handler: handler, Frames: frames})
	go func() { _ = p.Serve() }() // ends with Close
	t.Cleanup(func() { _ = p.Close() })
	return p, &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
}

// boundedPort listens for at most most connections.
func boundedPort(t *testing.T, most int) (l *Listener, client *tls.Config) {
	t.Helper()
	l = must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: most, Metrics: prometheus.NewRegistry()}))(t)
	answer := &h2.Answer{Status: http.StatusNoContent, Fields: []hpack.HeaderField{{Name: ":status", Value: "204"}}}
	_, client = serve(t, l, h2.Plan{Answer: answer}, http.NotFoundHandler())
	return l, client
}

// A connection holds its place until it is closed, over both protocols.
func TestMaxConnections(t *testing.T) {
	const most = 4
	for _, protocol := range []string{"h2", "http/1.1"} {
		t.Run(protocol, func(t *testing.T) {
			c, client := boundedPort(t, most)
			client.NextProtos = []string{protocol}
			open := func() (*tls.Conn, error) {
				conn, err := (&tls.Dialer{Config: client}).DialContext(t.Context(), "tcp", c.Addr().String())
				if err != nil {
					return nil, err
				}
				t.Cleanup(func() { _ = conn.Close() })
				return conn.(*tls.Conn), served(conn.(*tls.Conn), protocol)
			}
			var conns []*tls.Conn
			for range most {
				conn := must.Get(open())(t)
				conns = append(conns, conn)
			}
			if n := c.open.Load(); n != most {
				t.Errorf("fairlead_connections is %d with %d connections open", n, most)
			}
			more := make(chan error, 1)
			go func() { _, err := open(); more <- err }()
			must.Soon(t, 10*time.Second, "a full port says so", func() bool { return testutil.ToFloat64(c.stalls) > 0 || len(more) > 0 })
			if len(more) > 0 {
				t.Fatalf("connection %d is served where %d are allowed (%v)", most+1, most, <-more)
			}
			_ = conns[0].Close()
			if err := <-more; err != nil {
				t.Fatalf("the connection that waited: %v", err)
			}
			for _, conn := range conns {
				_ = conn.Close()
			}
			must.Soon(t, 10*time.Second, "one connection is counted when one is open", func() bool { return c.open.Load() == 1 })
		})
	}
}

// exhausted fails several times for lack of file descriptors.
type exhausted struct {
	net.Listener
	times int
}

func (e *exhausted) Accept() (net.Conn, error) {
	if e.times--; e.times >= 0 {
		return nil, syscall.EMFILE
	}
	return e.Listener.Accept()
}

// A failed Accept keeps no place.
func TestFailedAcceptKeepsNoPlace(t *testing.T) {
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: 1}))(t)
	defer time.AfterFunc(10*time.Second, func() { _ = l.Close() }).Stop() // ends a wait for a place
	l.Listener = &exhausted{l.Listener, 2}
	for range 2 {
		if _, err := l.Accept(); !errors.Is(err, syscall.EMFILE) {
			t.Fatal(err)
		}
	}
	client := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	_ = conn.Close()
	_ = l.Close()
}

// A full port is logged once in stallLogInterval, however often clients come.
func TestStallsAreLoggedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l := &Listener{log: slog.New(slog.NewTextHandler(&log, nil)), stalls: prometheus.NewCounter(prometheus.CounterOpts{})}
		for range 5 { // the first one and the fourth one, which comes after more than an interval
			l.stalled("no place", nil)
			time.Sleep(stallLogInterval / 2)
		}
		if n := strings.Count(log.String(), "new connections wait"); n != 2 {
			t.Errorf("%d lines of 5 stalls in two intervals, want 2", n)
		}
		if n := testutil.ToFloat64(l.stalls); n != 5 {
			t.Errorf("counted %v, want each", n)
		}
	})
}

// A port that stays full is counted once in stallLogInterval: no alert would notice a counter that
// rose once.
func TestStallThatLastsIsCountedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Listener{log: slog.New(slog.DiscardHandler), stalls: prometheus.NewCounter(prometheus.CounterOpts{}), done: make(chan struct{})} // with no place
		time.AfterFunc(4*stallLogInterval+time.Second, func() { close(l.done) })
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("error %v, want %v", err, net.ErrClosed)
		}
		if n := testutil.ToFloat64(l.stalls); n != 5 {
			t.Errorf("counted %v in four intervals, want 5: at once, and after each", n)
		}
	})
}

// served sends one request, after which the connection is in its final state.
func served(c *tls.Conn, protocol string) error {
	if protocol != "h2" {
		r, err := http.NewRequest(http.MethodGet, "https://x/", nil)
		if err != nil {
			return err
		}
		if err := r.Write(c); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		return err
	}
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		return err
	}
	fr := http2.NewFramer(c, c)
	if err := fr.WriteSettings(); err != nil {
		return err
	}
	if err := fr.WritePing(false, [8]byte{}); err != nil {
		return err
	}
	for {
		f, err := fr.ReadFrame()
		if p, ok := f.(*http2.PingFrame); err != nil || ok && p.IsAck() {
			return err
		}
	}
}
