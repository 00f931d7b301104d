package certs

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// servingNames maps names to serving pairs. It is immutable.
type servingNames struct {
	fallback *tls.Certificate
	// explicit names come from the flags, implied ones from a certificate without explicit names.
	// If two pairs have a name, the first gets it.
	explicit, implied map[string]*tls.Certificate
}

// sniPair is an SNI pair with its explicit names.
type sniPair struct {
	cert  *tls.Certificate
	names []string
}

// newServingNames gives precedence as kube-apiserver does: a full name before a wildcard, an
// explicit name before one from a certificate, an earlier flag before a later one.
func newServingNames(fallback *tls.Certificate, sni []sniPair) *servingNames {
	n := &servingNames{fallback: fallback, explicit: make(map[string]*tls.Certificate), implied: make(map[string]*tls.Certificate)}
	for _, p := range sni {
		if p.cert == nil {
			continue
		}
		if n.fallback == nil {
			n.fallback = p.cert
		}
		into, names := n.explicit, p.names
		if len(names) == 0 {
			into, names = n.implied, certificateNames(p.cert)
		}
		for _, name := range names {
			name = strings.ToLower(name)
			if into[name] == nil {
				into[name] = p.cert
			}
		}
	}
	return n
}

// certificateNames returns the names of a certificate. The common name counts here, as upstream: it
// only selects the pair, the client verifies it.
func certificateNames(c *tls.Certificate) []string {
	var names []string
	cn := c.Leaf.Subject.CommonName
	if _, err := netip.ParseAddr(cn); err != nil && (cn == "*" || len(validation.IsDNS1123Subdomain(strings.TrimPrefix(cn, "*."))) == 0) {
		names = append(names, cn)
	}
	return append(names, c.Leaf.DNSNames...)
}

// errNoServing fails handshakes while there is no serving pair yet.
var errNoServing = errors.New("there is no serving certificate yet")

// certificate selects a pair by the SNI name or, if there is none, by the address that the client
// dialled: a client that dials an IP address sends no name.
func (n *servingNames) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if name == "" && hello.Conn != nil {
		if host, _, err := net.SplitHostPort(hello.Conn.LocalAddr().String()); err == nil {
			name = host
		}
	}
	if c := n.lookup(name); c != nil {
		return c, nil
	}
	if n.fallback == nil {
		return nil, errNoServing
	}
	return n.fallback, nil
}

func (n *servingNames) lookup(name string) *tls.Certificate {
	if name == "" {
		return nil
	}
	if c := n.either(name); c != nil {
		return c
	}
	// A wildcard replaces whole labels, from the left: crypto/tls and kube-apiserver try them in
	// this order.
	labels := strings.Split(name, ".")
	for i := range min(len(labels), maxWildcards) {
		labels[i] = "*"
		if c := n.either(strings.Join(labels, ".")); c != nil {
			return c
		}
	}
	// "*.example.com" for a.example.com was tried above. A lone "*" matches every name.
	return n.either("*")
}

// maxWildcards bounds the labels tried as wildcards: the name comes from a stranger and may have
// 127.
const maxWildcards = 8

func (n *servingNames) either(name string) *tls.Certificate {
	return cmp.Or(n.explicit[name], n.implied[name])
}

// TLS returns the configuration of the listeners. It follows the pairs and CAs: each handshake uses
// the current ones, open connections stay as they are. Clients are asked for a certificate, which
// is not verified here: VerifyUser does that, so that a bad certificate gets a 401 response and not
// a broken connection.
func (s *Store) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:         cmp.Or(s.cfg.MinVersion, tls.VersionTLS12), // RFC 8996 deprecated the older versions
		NextProtos:         s.cfg.nextProtos(),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.serving.Load(), nil },
		// A ticket would restore the client certificate of an earlier handshake without proof that
		// the client still has its key, and would outlive a rotation of the serving pair. No client
		// of an apiserver keeps tickets across processes, so disabling them costs nothing.
		SessionTicketsDisabled: true,
	}
}

// nextProtos returns the ALPN protocols: h2 first, as every Kubernetes client prefers it.
func (c Config) nextProtos() []string {
	if c.HTTP1 {
		return []string{"http/1.1"}
	}
	return []string{"h2", "http/1.1"}
}

// rebuild makes the configuration for the next handshakes from the values in force.
func (s *Store) rebuild() {
	s.mu.Lock()
	defer s.mu.Unlock()
	sni := make([]sniPair, 0, len(s.sni))
	for i, p := range s.sni {
		sni = append(sni, sniPair{p.Certificate(), s.cfg.SNI[i].Names})
	}
	names := newServingNames(s.pair.Certificate(), sni)
	s.serving.Store(&tls.Config{
		MinVersion:             cmp.Or(s.cfg.MinVersion, tls.VersionTLS12),
		CipherSuites:           s.cfg.CipherSuites,
		NextProtos:             s.cfg.nextProtos(),
		GetCertificate:         names.certificate,
		ClientAuth:             tls.RequestClientCert,
		ClientCAs:              s.clients.current.Load().union,
		SessionTicketsDisabled: true,
	})
}
