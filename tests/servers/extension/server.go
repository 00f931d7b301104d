// Package extension is an extension API server for tests: it serves discovery, OpenAPI, objects and watches over
// HTTP/1.1 and HTTP/2 with TLS, misbehaves on request, and records exactly what it receives.
//
// net/http serves both protocols. What a correct server cannot commit (a GOAWAY before the request was processed, DATA
// after RST_STREAM, endless header blocks) is written between its frames, or instead of its answer.
//
// All methods are safe for concurrent use. Everything that a client can make it keep is bounded. It
// is only for tests: it trusts its callers and has no time limits.
package extension

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Config describes the server without faults. The zero value serves widgets.example.com/v1 on a free loopback port,
// with a certificate for localhost and 127.0.0.1 from a CA of its own, and authenticates nobody.
type Config struct {
	// GroupVersions are the served "group/version"s, each group's preferred version first. Nil: widgets.example.com/v1.
	GroupVersions []string
	Address       string // the address to listen on. Empty: a free port of 127.0.0.1.
	// Names are DNS names and addresses of the serving certificate, besides localhost and 127.0.0.1. Nil: none.
	Names   []string
	CA      *pki.CA // signs the serving certificate. Nil: a new one.
	NoHTTP1 bool    // removes HTTP/1.1 from ALPN. False: both protocols are served.
	// LegacyDiscovery answers /apis with an APIGroupList, even to requests for aggregated discovery. False: aggregated.
	LegacyDiscovery bool
	// RequestHeaderCA signs the client certificates that may assert X-Remote-*. Nil: all peers count as verified.
	RequestHeaderCA *x509.CertPool
	AllowedNames    []string // the allowed common names of those certificates. Nil: any.
	RejectWith      int      // the status for callers that RequestHeaderCA does not verify. 0: they are served
	MaxStreams      uint32   // the number of concurrent HTTP/2 streams per connection. 0: 250
	// Objects is the initial number of widgets of about 1 KB in the namespace default. 0: 100, so
	// that a LIST has 100 KB.
	Objects int
	Record  int // the number of recorded requests. 0: 1,024. Negative: none, for benchmarks.
	// Wrap wraps the handler of requests without a fault, including discovery, for tests with their
	// own objects. It is called for each request. Nil: not wrapped.
	Wrap func(next http.Handler) http.Handler
}

// Server is a running extension server.
type Server struct {
	CA *pki.CA // signed the serving certificate; it belongs in caBundle

	cfg       Config
	versions  []schema.GroupVersion
	documents documents
	faults    faults
	ring      ring
	stores    map[string]*store // :: group → its widgets; fixed after New
	listen    *listener
	http      http.Server
	conns     chan net.Conn // for http, after their handshake
	accepted  atomic.Int64

	ctx    context.Context // canceled by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine the server started
}

// Start runs a server until the test ends.
func Start(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatalf("starting extension server: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// New starts a server. The caller closes it.
func New(cfg Config) (_ *Server, err error) {
	defer try.Catch(&err)
	if cfg.GroupVersions == nil {
		cfg.GroupVersions = []string{"widgets.example.com/v1"}
	}
	if cfg.CA == nil {
		cfg.CA = pki.NewCA("extension-ca")
	}
	s := &Server{CA: cfg.CA, cfg: cfg, stores: map[string]*store{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, name := range cfg.GroupVersions {
		gv := try.Get(schema.ParseGroupVersion(name))
		s.versions = append(s.versions, gv)
		if s.stores[gv.Group] == nil {
			s.stores[gv.Group] = newStore(cmp.Or(cfg.Objects, 100))
		}
	}
	s.documents = newDocuments(s.versions)
	s.ring.size = max(cmp.Or(cfg.Record, 1024), 0) // some seconds of a test's requests, with 64 KiB of header each at most
	s.faults.change, s.faults.certificates, s.conns = make(chan struct{}), certificates(cfg), make(chan net.Conn)
	s.http = http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, sessionKey{}, c) },
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ReadHeaderTimeout: time.Minute, // a test may send half a head, but it does not stay forever
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: int(cmp.Or(cfg.MaxStreams, 250)), MaxReceiveBufferPerStream: 64<<10 - 1},
	}
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetUnencryptedHTTP2(true)
	s.listen = try.Get(newListener(cmp.Or(cfg.Address, "127.0.0.1:0"), s.accept))
	s.wg.Go(func() { _ = s.http.Serve(handover{s}) }) // ends with ctx
	if err := s.listen.open(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close ends every connection and returns when all goroutines have ended.
func (s *Server) Close() {
	s.cancel()
	s.listen.close()
	_ = s.http.Close()
	s.wg.Wait()
}

// Addr is the server's host and port, even while a fault has closed it.
func (s *Server) Addr() string { return s.listen.addr }

// Port is the port of that address.
func (s *Server) Port() int { return s.listen.port }

// URL returns https:// and Addr.
func (s *Server) URL() string { return "https://" + s.Addr() }

// TLS returns a client configuration that trusts the server and offers both protocols.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{RootCAs: s.CA.Pool(), MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
}

// Accepted counts the TCP connections since the start.
func (s *Server) Accepted() int64 { return s.accepted.Load() }
