package certs

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// PairSource names the files of a key pair.
type PairSource struct {
	Cert  string   // has the certificate, followed by its intermediates. Empty means that there is no pair
	Key   string   // has its private key, unencrypted
	Names []string // those that an SNI pair is for, or wildcards. Empty means the certificate's
}

// Pair is a key pair that follows its source.
type Pair struct {
	current atomic.Pointer[pairState]
	names   []string // as in PairSource
}

// pairState is one key pair. It is immutable.
type pairState struct {
	cert       *tls.Certificate // nil means none yet
	superseded chan struct{}    // closed once another is in force
}

// NewPair makes a Pair that is empty until Set. names are as in PairSource.
func NewPair(names ...string) *Pair {
	p := &Pair{names: names}
	p.current.Store(&pairState{superseded: make(chan struct{})})
	return p
}

// Certificate returns the pair in force, nil while there is none. The caller must not change it.
func (p *Pair) Certificate() *tls.Certificate { return p.current.Load().cert }

// Chain parses the certificates in force, leaf first. There may be none.
func (p *Pair) Chain() ([]*x509.Certificate, error) {
	return x509.ParseCertificates(slices.Concat(cmp.Or(p.Certificate(), &tls.Certificate{}).Certificate...))
}

// Changed returns a channel that is closed once the pair in force changes. A connection made with
// an older pair should take no new stream. Its requests and watches go on.
func (p *Pair) Changed() <-chan struct{} { return p.current.Load().superseded }

// GetClientCertificate is for tls.Config. It returns the current pair whichever CAs the server asks
// for, as client-go does: servers that ask for the wrong CA are common and verify the certificate
// all the same. Without a pair it returns an empty certificate, which means none to crypto/tls.
func (p *Pair) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return cmp.Or(p.Certificate(), &tls.Certificate{}), nil
}

// Set puts a certificate in force, which nobody may change from then on.
func (p *Pair) Set(cert *tls.Certificate) {
	old := p.current.Swap(&pairState{cert: cert, superseded: make(chan struct{})})
	close(old.superseded) // swap before close: a goroutine that wakes up must find the new pair
}

// take puts data (certificate, key) in force. It refuses a truncated certificate file: intermediates would be missing.
func (p *Pair) take(data [][]byte) error {
	_, err1 := bundle.Parse(data[0])
	cert, err2 := tls.X509KeyPair(data[0], data[1])
	if err := cmp.Or(err1, err2); err != nil {
		return fmt.Errorf("parsing key pair: %w", err)
	}
	p.Set(&cert)
	return nil
}

// servingNames maps names to serving pairs. It is immutable.
type servingNames struct {
	all   []*tls.Certificate          // first the one of no name, which may be nil
	names map[string]*tls.Certificate // lower case
}

// newServingNames prefers, as kube-apiserver, full names to wildcards, explicit names to certificates', earlier flags.
func newServingNames(fallback *tls.Certificate, sni []*Pair) *servingNames {
	n := &servingNames{all: []*tls.Certificate{fallback}, names: make(map[string]*tls.Certificate)}
	implied := make(map[string]*tls.Certificate)
	for _, p := range sni {
		cert := p.Certificate()
		if cert == nil {
			continue
		}
		n.all = append(n.all, cert)
		into, names := n.names, p.names
		if len(names) == 0 {
			into, names = implied, certificateNames(cert)
		}
		for _, name := range names {
			name = strings.ToLower(name)
			into[name] = cmp.Or(into[name], cert)
		}
	}
	for name, cert := range implied {
		n.names[name] = cmp.Or(n.names[name], cert)
	}
	return n
}

// certificateNames returns a certificate's names. The common name counts, as upstream: it only selects the pair.
func certificateNames(c *tls.Certificate) []string {
	var names []string
	cn := c.Leaf.Subject.CommonName
	_, err := netip.ParseAddr(cn)
	if err != nil && (cn == "*" || len(validation.IsDNS1123Subdomain(strings.TrimPrefix(cn, "*."))) == 0) {
		names = append(names, cn)
	}
	return append(names, c.Leaf.DNSNames...)
}

// certificate selects a pair by the SNI name or, since a client that dials an address sends none, by that address.
func (n *servingNames) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	labels := strings.SplitN(name, ".", 2)
	labels[0] = "*" // one label, the leftmost, as in crypto/tls and kube-apiserver
	c := cmp.Or(n.names[name], n.names[strings.Join(labels, ".")])
	if name == "" && hello.Conn != nil {
		address, _, _ := net.SplitHostPort(hello.Conn.LocalAddr().String())
		c = n.names[address] // wildcards are for names
	}
	for _, o := range n.all { // as crypto/tls: a pair may be given for some of the names in its certificate only
		if c == nil && o != nil && hello.SupportsCertificate(o) == nil {
			c = o
		}
	}
	if c = cmp.Or(c, n.all[0]); c != nil {
		return c, nil
	}
	return nil, errors.New("there is no serving certificate yet")
}

// TLS returns the listeners' configuration: each handshake uses the current pairs and CAs, open connections stay.
// Clients are asked for a certificate, which VerifyUser verifies: a bad one gets 401 and not a broken connection.
func (s *Store) TLS() *tls.Config {
	c := s.serving.Load().Clone() // New has made it with the serving pair
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.serving.Load(), nil }
	return c
}

// rebuild makes the configuration for the next handshakes from the values in force.
func (s *Store) rebuild() {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := newServingNames(s.pair.Certificate(), s.sni)
	protocols := []string{"h2", "http/1.1"} // every Kubernetes client prefers h2
	if s.cfg.HTTP1 {
		protocols = protocols[1:]
	}
	s.serving.Store(&tls.Config{
		MinVersion:   cmp.Or(s.cfg.MinVersion, tls.VersionTLS12), // RFC 8996 deprecated the older versions
		CipherSuites: s.cfg.CipherSuites, CurvePreferences: s.cfg.Curves,
		NextProtos: protocols, GetCertificate: names.certificate,
		ClientAuth: tls.RequestClientCert, ClientCAs: s.clients.current.Load().union,
		VerifyConnection: func(c tls.ConnectionState) error {
			return trust.Light(c.PeerCertificates, 256<<10) //nolint:wrapcheck // says all. TLS reads no more
		},
		// A ticket would restore the client certificate of an earlier handshake without proof that
		// the client still has its key, and would outlive a rotation of the serving pair. No client
		// of an apiserver keeps tickets across processes, so disabling them costs nothing.
		SessionTicketsDisabled: true,
	})
}
