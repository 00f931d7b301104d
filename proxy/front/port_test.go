package front

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A drain lets what is under way finish, over both protocols, and cuts what does not in time.
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
				until(t, "the port takes no new connections", func() bool {
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

// A port whose listener is lost says so.
func TestServeFails(t *testing.T) {
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: 100}))(t)
	_ = l.Close()
	p := New(Config{Listener: l, TLS: &tls.Config{Certificates: make([]tls.Certificate, 1), MinVersion: tls.VersionTLS12}, Frames: h2.New(h2.Config{})})
	if err := p.Serve(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("it says %v", err)
	}
}

// servedPort serves by one handler, whichever the protocol.
func servedPort(t *testing.T, handler http.Handler) (p *Port, address string, client *tls.Config) {
	t.Helper()
	l := must.Get(Listen(t.Context(), Address{Host: "127.0.0.1", Name: "front", MaxConnections: 100}))(t)
	p, client = serve(t, l, h2.Plan{Serve: handler}, handler)
	return p, l.Addr().String(), client
}

// serve has a port answer every request over HTTP/2 by a plan, and every other one by a handler.
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
