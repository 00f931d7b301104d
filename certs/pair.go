package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"sync/atomic"
	"time"
)

// PairSource says which files a key pair comes from.
type PairSource struct {
	// Cert has the certificate, followed by its intermediates. Empty: there is no pair.
	Cert string
	// Key has its private key, not encrypted.
	Key string
	// Names are the names that a client may ask for to get this pair, for an SNI pair; "*.example.com" is a wildcard. Empty: those in the certificate.
	Names []string
}

// Pair is a key pair that follows its source.
type Pair struct {
	current atomic.Pointer[pairState]
}

// pairState is one key pair. It is immutable.
type pairState struct {
	cert       *tls.Certificate // nil: none yet
	superseded chan struct{}    // closed once another is in place
}

func newPair() *Pair {
	p := &Pair{}
	p.current.Store(&pairState{superseded: make(chan struct{})})
	return p
}

// Certificate is the pair in force, nil while there is none. The caller must not change it.
func (p *Pair) Certificate() *tls.Certificate { return p.current.Load().cert }

// Changed is closed once another pair is in force than now. A connection made with an older one should take no new stream; its requests and watches go on.
func (p *Pair) Changed() <-chan struct{} { return p.current.Load().superseded }

// GetClientCertificate is for tls.Config: it gives the pair of now to whichever server asks, as client-go does, because servers that ask for the wrong CA are common and
// verify all the same. Without a pair it gives an empty certificate, which crypto/tls takes for none.
func (p *Pair) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if c := p.Certificate(); c != nil {
		return c, nil
	}
	return &tls.Certificate{}, nil
}

// take parses data (certificate, key) and puts it in force. One goroutine at a time calls it.
func (p *Pair) take(data [][]byte) error {
	cert, err := parsePair(data[0], data[1])
	if err != nil {
		return err
	}
	old := p.current.Load()
	p.current.Store(&pairState{cert: cert, superseded: make(chan struct{})})
	// Swap before close: who wakes up must find the new one.
	close(old.superseded)
	return nil
}

// parsePair makes a pair of PEM. It refuses a certificate file that is cut short even when its first certificate is whole: clients would miss the intermediates.
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
	for i, der := range cert.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("parsing certificate %d: %w", i+1, err)
		}
		if i == 0 {
			cert.Leaf = c
		}
	}
	if cert.Leaf == nil {
		return nil, errors.New("parsing key pair: no certificate")
	}
	return &cert, nil
}

// selfSigned makes a pair for a server that was given none, so that a first start needs no preparation. Nobody trusts it.
func selfSigned() (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, nil, fmt.Errorf("making serial number: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "fairlead self-signed"},
		NotBefore:    now.Add(-time.Hour),   // clocks differ
		NotAfter:     now.AddDate(1, 0, 0),  // as kube-apiserver's own
		DNSNames:     []string{"localhost"}, // what it can be reached at without anybody's help
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
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
