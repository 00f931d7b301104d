// Package extension is an extension API server for tests: it serves discovery, OpenAPI, objects,
// watches and WebSockets over HTTP/1.1 and HTTP/2 with TLS, misbehaves in a chosen way when told
// to, and reports back exactly what it received.
//
// HTTP/2 is served by this package itself, frame by frame, because most faults worth having (a
// GOAWAY before the request was processed, DATA after RST_STREAM, header blocks without end) are
// those that a correct server cannot be made to commit.
//
// All methods may be called at any time from any goroutine. Everything a client can make it keep
// has a bound. It is not a server for anything but tests: it believes what it is told and has no
// limits on time.
package extension

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Config says what the server is while nothing is wrong. The zero value serves
// widgets.example.com/v1 on a free loopback port with a certificate for localhost and 127.0.0.1
// from a CA of its own, and asks nobody who they are.
type Config struct {
	// GroupVersions are the group-versions to serve, as "group/version", the preferred version of a
	// group first. Nil: widgets.example.com/v1.
	GroupVersions []string
	// Address is where to listen. Empty: a free port of 127.0.0.1.
	Address string
	// Names are DNS names and addresses of the serving certificate, besides localhost and
	// 127.0.0.1. Nil: none.
	Names []string
	// CA signs the serving certificate. Nil: a new one.
	CA *pki.CA
	// NoHTTP1 takes HTTP/1.1 out of ALPN. False: both protocols are served.
	NoHTTP1 bool
	// LegacyDiscovery answers /apis with an APIGroupList even where aggregated discovery was asked
	// for. False: aggregated.
	LegacyDiscovery bool
	// RequestHeaderCA signs the client certificates that may assert X-Remote-*. Nil: nobody is
	// asked.
	RequestHeaderCA *x509.CertPool
	// AllowedNames are the common names those certificates may have. Nil: any.
	AllowedNames []string
	// RejectWith is the status for callers that RequestHeaderCA does not vouch for. 0: they are
	// served.
	RejectWith int
	// MaxStreams is the number of concurrent HTTP/2 streams per connection. 0: 250, as many as Go's
	// server allows.
	MaxStreams uint32
	// Objects is how many widgets of about 1 KB exist from the start in the namespace default. 0:
	// 100, so that a LIST has 100 KB.
	Objects int
	// Record is how many requests are remembered. 0: 1,024. Negative: none, for benchmarks.
	Record int
	// Wrap stands around what answers a request on which no fault was applied, discovery included:
	// for tests with objects of their own. It is called for each request. Nil: nothing stands
	// there.
	Wrap func(next http.Handler) http.Handler
}

// Server is a running extension server.
type Server struct {
	// CA signed the serving certificate: what belongs into caBundle.
	CA *pki.CA

	cfg      Config
	versions []groupVersion
	pairs    pairs
	faults   faults
	ring     ring
	stores   map[string]*store // :: group → its widgets; fixed after New
	listen   *listener
	h1       *http.Server
	h1conns  *handover
	stats    counters

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine the server started
}

// Stats counts what the server has seen since it started, and what is open now.
type Stats struct {
	// Requests is how many requests arrived, Handshakes how many TLS handshakes succeeded.
	Requests, Handshakes int64
	// Accepted is how many TCP connections were accepted, Open how many of them are open.
	Accepted, Open int64
	// Watchers is how many watches are open.
	Watchers int64
}

type counters struct{ requests, handshakes, accepted, open, watchers atomic.Int64 }

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
func New(cfg Config) (*Server, error) {
	versions, err := parseVersions(cfg.GroupVersions)
	if err != nil {
		return nil, err
	}
	if cfg.CA == nil {
		cfg.CA = pki.NewCA("extension-ca")
	}
	cfg.MaxStreams = cmp.Or(cfg.MaxStreams, 250)
	s := &Server{CA: cfg.CA, cfg: cfg, versions: versions, stores: map[string]*store{}}
	s.ring.size = max(cmp.Or(cfg.Record, 1024), 0) // some seconds of a test's requests, at 64 KiB of header each at most
	s.pairs = newPairs(cfg)
	for _, gv := range versions {
		if s.stores[gv.group] == nil {
			s.stores[gv.group] = newStore(gv, cfg.Objects)
		}
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.h1conns = &handover{conns: make(chan net.Conn), done: s.ctx.Done()}
	s.h1 = &http.Server{
		Handler:           http.HandlerFunc(s.serveH1),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, tapKey{}, c) },
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: time.Minute, // a half-sent head is the client's test, but does not live for ever
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
	}
	if s.listen, err = newListener(cfg.Address, s.accept); err != nil {
		s.cancel()
		return nil, err
	}
	s.wg.Go(func() { _ = s.h1.Serve(s.h1conns) }) // ends with h1conns
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
	_ = s.h1.Close()
	s.wg.Wait()
}

// Addr is the host and port that the server listens on, also while a fault has closed it.
func (s *Server) Addr() string { return s.listen.addr }

// Port is the port of that address.
func (s *Server) Port() int { return s.listen.port }

// URL is https:// with Addr.
func (s *Server) URL() string { return "https://" + s.Addr() }

// TLS is a client configuration that trusts the server and offers both protocols.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{RootCAs: s.CA.Pool(), MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
}

// Stats is what the server has seen.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{
		Requests: c.requests.Load(), Handshakes: c.handshakes.Load(), Accepted: c.accepted.Load(), Open: c.open.Load(), Watchers: c.watchers.Load(),
	}
}

type groupVersion struct{ group, version string }

func (gv groupVersion) String() string { return gv.group + "/" + gv.version }

func parseVersions(names []string) ([]groupVersion, error) {
	if names == nil {
		names = []string{"widgets.example.com/v1"}
	}
	var out []groupVersion
	for _, name := range names {
		group, version, ok := strings.Cut(name, "/")
		if !ok || group == "" || version == "" || strings.Contains(version, "/") {
			return nil, fmt.Errorf("reading group-version %q: want group/version", name)
		}
		out = append(out, groupVersion{group, version})
	}
	return out, nil
}
