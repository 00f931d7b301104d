package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// network is a network in memory, also for synctest: real TLS and HTTP servers behind pipes.
type network struct {
	t    testing.TB
	ca   *pki.CA
	pair tls.Certificate // of all servers

	dials   atomic.Int64
	before  func(ctx context.Context, address string) // each dial; nil: nothing
	servers sync.Map                                  // by address
}

// server is an extension server at an address. It counts requests, connections, and those that are open.
type server struct {
	*http.Server
	accept            chan net.Conn
	done              chan struct{} // closed by Close
	hits, conns, open atomic.Int64
}

const (
	protoH1 = "http/1.1"
	protoH2 = "h2"
)

func newNetwork(t testing.TB) *network {
	ca := pki.NewCA("serving")
	return &network{t: t, ca: ca, pair: ca.Issue(pki.Leaf{Names: []string{"example.com"}}).TLS()}
}

func (n *network) trust() (*tls.Config, error) {
	return &tls.Config{RootCAs: n.ca.Pool(), ServerName: "example.com"}, nil
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.dials.Add(1)
	if n.before != nil {
		n.before(ctx, address)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	known, _ := n.servers.Load(address)
	s, serves := known.(*server)
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	if !serves {
		return nil, refused
	}
	client, server := net.Pipe()
	select {
	case s.accept <- server:
		return client, nil
	case <-s.done:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// silent makes an address that drops packets, or accepts connections and stays silent.
func (n *network) silent(address string, accepts bool) *server {
	s := &server{accept: make(chan net.Conn), done: make(chan struct{})}
	if accepts {
		s.accept = make(chan net.Conn, 10)
	}
	n.servers.Store(address, s)
	return s
}

func (n *network) serve(address, proto string, handler http.HandlerFunc) *server {
	s := n.silent(address, false)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(proto == protoH2)
	s.Server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.hits.Add(1)
			if handler != nil {
				handler(w, r)
			}
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				s.conns.Add(1)
				s.open.Add(1)
			case http.StateClosed, http.StateHijacked:
				s.open.Add(-1)
			}
		},
		Protocols: &protocols, TLSConfig: &tls.Config{Certificates: []tls.Certificate{n.pair}}, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	go func() { _ = s.ServeTLS(listener{s}, "", "") }() // returns http.ErrServerClosed
	n.t.Cleanup(func() { _ = s.Close() })
	return s
}

// kernel answers on loopback, for what needs the kernel's buffers and options.
func (n *network) kernel(handler http.HandlerFunc) (address string) {
	s := httptest.NewUnstartedServer(handler)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{n.pair}, NextProtos: []string{protoH2, protoH1}}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	n.t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

type listener struct{ s *server }

func (l listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.s.accept:
		return c, nil
	case <-l.s.done:
		return nil, errors.New("closed")
	}
}

func (l listener) Close() error {
	close(l.s.done)
	return nil
}

func (l listener) Addr() net.Addr { return &net.TCPAddr{} }
