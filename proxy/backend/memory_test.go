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
	"syscall"
	"testing"
)

// memoryNet is a network in memory, for synctest: real TLS and HTTP servers behind pipes.
type memoryNet struct {
	cert    tls.Certificate
	mu      sync.Mutex
	servers map[string]*memoryServer
	// silent addresses drop packets: a dial to them never ends.
	silent map[string]bool
}

type memoryServer struct {
	net     *memoryNet
	address string
	http    *http.Server
	accept  chan net.Conn
	done    chan struct{}
	once    sync.Once
}

func newMemoryNet(t *testing.T) *memoryNet {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	n := &memoryNet{cert: s.TLS.Certificates[0], servers: make(map[string]*memoryServer), silent: make(map[string]bool)}
	t.Cleanup(n.stopAll)
	return n
}

func (n *memoryNet) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	s, silent := n.servers[address], n.silent[address]
	n.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s == nil {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}
	client, server := net.Pipe()
	select {
	case s.accept <- server:
		return client, nil
	case <-s.done:
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serve answers at address until stop, or until the test ends. A stopped server may be replaced.
func (n *memoryNet) serve(address, proto string, handler http.HandlerFunc) *memoryServer {
	if handler == nil {
		handler = http.NotFound
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(proto == protoH2)
	s := &memoryServer{
		net: n, address: address, accept: make(chan net.Conn), done: make(chan struct{}),
		http: &http.Server{
			Handler: handler, Protocols: &protocols, TLSConfig: &tls.Config{Certificates: []tls.Certificate{n.cert}},
			ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		},
	}
	n.mu.Lock()
	n.servers[address] = s
	n.mu.Unlock()
	go func() { _ = s.http.ServeTLS(s, "", "") }() // returns http.ErrServerClosed
	return s
}

// stop ends the server and its connections.
func (s *memoryServer) stop() {
	s.net.mu.Lock()
	if s.net.servers[s.address] == s {
		delete(s.net.servers, s.address)
	}
	s.net.mu.Unlock()
	_ = s.http.Close()
	_ = s.Close()
}

func (n *memoryNet) stopAll() {
	n.mu.Lock()
	list := n.servers
	n.servers = make(map[string]*memoryServer)
	n.mu.Unlock()
	for _, s := range list {
		s.stop()
	}
}

func (s *memoryServer) Accept() (net.Conn, error) {
	select {
	case c := <-s.accept:
		return c, nil
	case <-s.done:
		return nil, errors.New("closed")
	}
}

func (s *memoryServer) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

func (s *memoryServer) Addr() net.Addr { return &net.TCPAddr{} }

// newMemoryFixture makes a fixture with endpoints in memory.
func newMemoryFixture(t *testing.T) (*memoryNet, *fixture) {
	t.Helper()
	n := newMemoryNet(t)
	return n, newFixture(t, func(cfg *Config) { cfg.Dial = n.dial })
}
