package certs

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// PairSource names the files of a key pair.
type PairSource struct {
	// Cert has the certificate, followed by its intermediates. Empty means that there is no pair.
	Cert string
	// Key has its private key, unencrypted.
	Key string
	// Names are the names for which an SNI pair is used; "*.example.com" is a wildcard. Empty means
	// those in the certificate.
	Names []string
}

// Pair is a key pair that follows its source.
type Pair struct {
	current atomic.Pointer[pairState]
}

// pairState is one key pair. It is immutable.
type pairState struct {
	cert       *tls.Certificate // nil means none yet
	superseded chan struct{}    // closed once another is in force
}

func newPair() *Pair {
	p := &Pair{}
	p.current.Store(&pairState{superseded: make(chan struct{})})
	return p
}

// Certificate returns the pair in force, nil while there is none. The caller must not change it.
func (p *Pair) Certificate() *tls.Certificate { return p.current.Load().cert }

// Changed returns a channel that is closed once the pair in force changes. A connection made with
// an older pair should take no new stream. Its requests and watches go on.
func (p *Pair) Changed() <-chan struct{} { return p.current.Load().superseded }

// GetClientCertificate is for tls.Config. It returns the current pair whichever CAs the server asks
// for, as client-go does: servers that ask for the wrong CA are common and verify the certificate
// all the same. Without a pair it returns an empty certificate, which means none to crypto/tls.
func (p *Pair) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return cmp.Or(p.Certificate(), &tls.Certificate{}), nil
}

// take parses data (certificate, key) and puts it in force. Calls must not overlap.
func (p *Pair) take(data [][]byte) error {
	cert, err := parsePair(data[0], data[1])
	if err != nil {
		return err
	}
	old := p.current.Load()
	p.current.Store(&pairState{cert: cert, superseded: make(chan struct{})})
	// Swap before close: a goroutine that wakes up must find the new pair.
	close(old.superseded)
	return nil
}

// parsePair parses a pair in PEM. It refuses a truncated certificate file even if its first
// certificate is complete: clients would miss the intermediates.
func parsePair(certPEM, keyPEM []byte) (*tls.Certificate, error) {
	if len(certPEM) > maxFile || len(keyPEM) > maxFile {
		return nil, fmt.Errorf("parsing key pair: more than %d bytes", maxFile)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("parsing key pair: %w", err)
	}
	if begun := bytes.Count(certPEM, []byte("-----BEGIN CERTIFICATE-----")); begun > len(cert.Certificate) {
		return nil, fmt.Errorf("parsing key pair: %d of %d certificates are broken or cut short", begun-len(cert.Certificate), begun)
	}
	for i, der := range cert.Certificate[1:] { // the first is cert.Leaf
		if _, err := x509.ParseCertificate(der); err != nil {
			return nil, fmt.Errorf("parsing certificate %d: %w", i+2, err)
		}
	}
	return &cert, nil
}

// selfSigned makes a pair for a server without one, so that a first start needs no preparation. No
// client trusts it.
func selfSigned() (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "fairlead self-signed"},
		NotBefore:   now.Add(-time.Hour),   // clocks differ
		NotAfter:    now.AddDate(1, 0, 0),  // like kube-apiserver's self-signed one
		DNSNames:    []string{"localhost"}, // reachable under it without any DNS record
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
}
