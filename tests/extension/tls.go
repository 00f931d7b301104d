package extension

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// pairs are the serving certificates: the valid one, and those with one fault each.
type pairs struct {
	good tls.Certificate
	bad  map[Kind]tls.Certificate // fixed after newPairs
}

func newPairs(cfg Config) pairs {
	names := append([]string{"localhost", "127.0.0.1"}, cfg.Names...)
	stranger := pki.NewCA(cfg.CA.Certificate.Subject.CommonName) // same name: only the signature differs
	issue := func(ca *pki.CA, leaf pki.Leaf) tls.Certificate {
		leaf.CommonName = "extension"
		return ca.Issue(leaf).TLS()
	}
	return pairs{
		good: issue(cfg.CA, pki.Leaf{Names: names}),
		bad: map[Kind]tls.Certificate{
			WrongCA:     issue(stranger, pki.Leaf{Names: names}),
			WrongName:   issue(cfg.CA, pki.Leaf{Names: []string{"somebody-else.test", "192.0.2.1"}}),
			NoNames:     issue(cfg.CA, pki.Leaf{}),
			Expired:     issue(cfg.CA, pki.Leaf{Names: names, NotAfter: time.Now().Add(-time.Minute)}),
			NotYetValid: issue(cfg.CA, pki.Leaf{Names: names, NotBefore: time.Now().Add(time.Hour)}),
			SHA1:        issue(cfg.CA, pki.Leaf{Names: names, SHA1: true}),
		},
	}
}

// SetPair replaces the serving certificate for new connections, as a rotation does. Faults take
// precedence.
func (s *Server) SetPair(pair *pki.Pair) {
	cert := pair.TLS()
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.rotated = &cert
}

// tlsConfig returns the configuration of a new connection, with the current faults.
func (s *Server) tlsConfig() *tls.Config {
	faulty := func(k Kind) bool { yes, _ := s.faults.connects(k); return yes }
	cert := s.pairs.good
	s.faults.mu.Lock()
	if s.faults.rotated != nil {
		cert = *s.faults.rotated
	}
	s.faults.mu.Unlock()
	for kind, bad := range s.pairs.bad {
		if faulty(kind) {
			cert = bad
		}
	}
	cfg := &tls.Config{
		Certificates: []tls.Certificate{cert},
		MinVersion:   tls.VersionTLS12,
		// Requested here and verified by verify: a bad certificate must reach the handler, to be
		// counted and answered.
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true, // each handshake must show the current certificate
	}
	if !faulty(HTTP1Only) {
		cfg.NextProtos = append(cfg.NextProtos, "h2")
	}
	if !s.cfg.NoHTTP1 && !faulty(HTTP2Only) {
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
