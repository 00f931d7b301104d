package extension

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// connection is a TCP connection below TLS. The fault Freeze stops its reads and writes.
type connection struct {
	net.Conn
	faults   *faults
	ctx      context.Context // ends with Close, or the Server's
	close    func() error
	state    tls.ConnectionState // set once, before the first request
	verified bool                // the peer may assert X-Remote-*; set with state
}

// Read waits while the connection is frozen, even if it has already read data.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err := c.wait(); err != nil {
		return 0, err
	}
	return n, err
}

// Write waits while the connection is frozen.
func (c *connection) Write(p []byte) (int, error) {
	if err := c.wait(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func (c *connection) wait() error {
	for {
		frozen, changed := c.faults.connects(Freeze)
		if !frozen {
			return nil
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
}

// Close ends the connection gracefully; a second call does nothing.
func (c *connection) Close() error { return c.close() }

func (c *connection) rst() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // discard unsent bytes: RST instead of FIN
	}
	c.Close()
}

// accept handles one connection until it is net/http's.
func (s *Server) accept(tcp net.Conn) {
	s.accepted.Add(1)
	ctx, cancel := context.WithCancel(s.ctx)
	c := &connection{Conn: tcp, faults: &s.faults, ctx: ctx}
	c.close = sync.OnceValue(func() error {
		defer cancel()
		s.listen.remove(c)
		return tcp.Close()
	})
	if !s.listen.add(c) {
		c.rst()
		return
	}
	s.wg.Go(func() { s.handshake(c) })
}

func (s *Server) handshake(c *connection) {
	if hangs, changed := s.faults.connects(HangConnect); hangs {
		select { // no answer to anything
		case <-changed:
		case <-c.ctx.Done():
		}
		c.rst()
		return
	}
	conn := tls.Server(c, s.tlsConfig())
	// Ten seconds: longer than clients' own limits, so that the client gives up first.
	ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
	defer cancel()
	if conn.HandshakeContext(ctx) != nil {
		c.Close()
		return
	}
	c.state = conn.ConnectionState()
	c.verified = s.verify(&c.state)
	select {
	case s.conns <- newSession(conn, c):
	case <-c.ctx.Done():
	}
}

// handover is the net.Listener that passes connections to net/http after their TLS handshake. For
// net/http they have no TLS, so that it accepts any type; it recognizes HTTP/2 by its preface.
type handover struct{ *Server }

// Accept implements net.Listener.
func (h handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The connections end with the Server.
func (h handover) Close() error { return nil }

// Addr implements net.Listener.
func (h handover) Addr() net.Addr { return &net.TCPAddr{} }

// certificates makes the valid serving certificate, that of no Kind, and those with one fault each.
func certificates(cfg Config) map[Kind]tls.Certificate {
	names := append([]string{"localhost", "127.0.0.1"}, cfg.Names...)
	stranger := pki.NewCA(cfg.CA.Certificate.Subject.CommonName) // same name: only the signature differs
	issue := func(ca *pki.CA, leaf pki.Leaf) tls.Certificate {
		leaf.CommonName = "extension"
		return ca.Issue(leaf).TLS()
	}
	return map[Kind]tls.Certificate{
		"":          issue(cfg.CA, pki.Leaf{Names: names}),
		WrongCA:     issue(stranger, pki.Leaf{Names: names}),
		WrongName:   issue(cfg.CA, pki.Leaf{Names: []string{"somebody-else.test", "192.0.2.1"}}),
		NoNames:     issue(cfg.CA, pki.Leaf{}),
		Expired:     issue(cfg.CA, pki.Leaf{Names: names, NotAfter: time.Now().Add(-time.Minute)}),
		NotYetValid: issue(cfg.CA, pki.Leaf{Names: names, NotBefore: time.Now().Add(time.Hour)}),
		SHA1:        issue(cfg.CA, pki.Leaf{Names: names, SHA1: true}),
	}
}

// SetPair replaces the serving certificate for new connections, as a rotation does. Faults take precedence.
func (s *Server) SetPair(pair *pki.Pair) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.certificates[""] = pair.TLS()
}

// tlsConfig returns the configuration of a new connection, with the current faults.
func (s *Server) tlsConfig() *tls.Config {
	cfg := &tls.Config{
		Certificates: []tls.Certificate{s.faults.certificate()},
		MinVersion:   tls.VersionTLS12,
		// Requested here and verified by verify: a bad certificate must reach the handler, to be counted and answered.
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true, // each handshake must show the current certificate
	}
	if http1, _ := s.faults.connects(HTTP1Only); !http1 {
		cfg.NextProtos = append(cfg.NextProtos, "h2")
	}
	if http2, _ := s.faults.connects(HTTP2Only); !http2 && !s.cfg.NoHTTP1 {
		cfg.NextProtos = append(cfg.NextProtos, "http/1.1")
	}
	return cfg
}

// verify reports, once per connection, whether the peer's certificate may assert X-Remote-*.
func (s *Server) verify(state *tls.ConnectionState) bool {
	if s.cfg.RequestHeaderCA == nil {
		return true
	}
	if len(state.PeerCertificates) == 0 {
		return false
	}
	between := x509.NewCertPool()
	for _, c := range state.PeerCertificates[1:] {
		between.AddCert(c)
	}
	leaf := state.PeerCertificates[0]
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots:         s.cfg.RequestHeaderCA,
		Intermediates: between,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil && (len(s.cfg.AllowedNames) == 0 || slices.Contains(s.cfg.AllowedNames, leaf.Subject.CommonName))
}
