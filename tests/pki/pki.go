// Package pki makes throw-away certificate authorities and key pairs for tests: valid ones, and ones with a chosen
// fault. Everything is in memory and safe for concurrent use.
//
// Validity begins an hour before time.Now(), so pairs made inside a testing/synctest bubble are
// valid inside that bubble.
//
// It is only for tests: keys are not protected and serial numbers are only random. What only a
// programming error can make fail panics.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// A CA signs certificates.
type CA struct {
	Certificate *x509.Certificate // the CA's own, self-signed or signed by its parent

	key   *ecdsa.PrivateKey
	chain [][]byte // from this CA up to, but without, the root: the chain that a leaf sends
}

// NewCA creates a root with this common name. Every call creates a new key.
func NewCA(commonName string) *CA {
	key := newKey()
	template := caTemplate(commonName)
	return &CA{Certificate: sign(template, template, key, key), key: key}
}

// Intermediate creates a CA signed by ca. Its leaves carry the chain up to the root.
func (ca *CA) Intermediate(commonName string) *CA {
	return ca.IntermediateUntil(commonName, caTemplate(commonName).NotAfter)
}

// IntermediateUntil is Intermediate with a chosen expiry.
func (ca *CA) IntermediateUntil(commonName string, notAfter time.Time) *CA {
	key := newKey()
	template := caTemplate(commonName)
	template.NotAfter = notAfter
	cert := sign(template, ca.Certificate, key, ca.key)
	return &CA{Certificate: cert, key: key, chain: append([][]byte{cert.Raw}, ca.chain...)}
}

// RSA is the certificate, in a bundle's form, of a CA below ca with an RSA key of this length, of which nobody has the
// private part.
func (ca *CA) RSA(bits int) []byte {
	key := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), bits-1, 1), E: 65537}
	der, err := x509.CreateCertificate(rand.Reader, caTemplate("rsa"), ca.Certificate, key, ca.key)
	must(err)
	return encode("CERTIFICATE", der)
}

// PEM is the CA's certificate in a bundle's form.
func (ca *CA) PEM() []byte { return encode("CERTIFICATE", ca.Certificate.Raw) }

// Bundle is the bundle of several CAs.
func Bundle(cas ...*CA) (all []byte) {
	for _, ca := range cas {
		all = append(all, ca.PEM()...)
	}
	return all
}

// WriteFiles writes a root's dir/name.crt and dir/name.key and returns their paths.
func (ca *CA) WriteFiles(dir, name string) (certFile, keyFile string, err error) {
	return (&Pair{Certificate: ca.Certificate, key: ca.key}).WriteFiles(dir, name)
}

// Pool returns a pool with only this CA.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate)
	return pool
}

// Leaf describes a certificate. The zero value is for a nameless client and server, valid for a day.
type Leaf struct {
	CommonName          string             // the subject's name: the user of a client certificate. Empty: none.
	Organizations       []string           // the groups of a client certificate. Nil: none.
	UIDs                []string           // the user's, as Kubernetes reads them from a client certificate. Nil: none.
	Names               []string           // its DNS names and IP addresses. Nil: none, not even CommonName.
	URIs                int                // how many empty URIs it has besides. Zero: none.
	NotBefore, NotAfter time.Time          // bound its validity. Zero: an hour ago, in a day.
	Usage               []x509.ExtKeyUsage // the extended key usage. Nil: TLS client and server.
	SHA1                bool               // signs with SHA-1, which verifiers have refused for years
}

// Issue creates a key pair for leaf.
func (ca *CA) Issue(leaf Leaf) *Pair {
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Organizations},
		NotBefore:    leaf.NotBefore,
		NotAfter:     leaf.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  leaf.Usage,
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = now.Add(-time.Hour)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = now.Add(24 * time.Hour)
	}
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}
	for _, uid := range leaf.UIDs {
		uidOfUser := pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}, Value: uid}
		template.Subject.ExtraNames = append(template.Subject.ExtraNames, uidOfUser)
	}
	if leaf.SHA1 {
		template.SignatureAlgorithm = x509.ECDSAWithSHA1
	}
	for _, name := range leaf.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	for range leaf.URIs {
		template.URIs = append(template.URIs, &url.URL{})
	}
	key := newKey()
	return &Pair{Certificate: sign(template, ca.Certificate, key, ca.key), key: key, chain: ca.chain}
}

// A Pair is a certificate with its key.
type Pair struct {
	Certificate *x509.Certificate // the leaf

	key   *ecdsa.PrivateKey
	chain [][]byte
}

// TLS is the pair for crypto/tls, with its intermediates.
func (p *Pair) TLS() tls.Certificate {
	return tls.Certificate{
		Certificate: append([][]byte{p.Certificate.Raw}, p.chain...),
		PrivateKey:  p.key,
		Leaf:        p.Certificate,
	}
}

// Chain is the parsed certificate with its intermediates, as a peer sees it.
func (p *Pair) Chain() []*x509.Certificate {
	chain := []*x509.Certificate{p.Certificate}
	for _, der := range p.chain {
		cert, err := x509.ParseCertificate(der)
		must(err)
		chain = append(chain, cert)
	}
	return chain
}

// CertPEM is the certificate followed by its intermediates.
func (p *Pair) CertPEM() []byte {
	out := encode("CERTIFICATE", p.Certificate.Raw)
	for _, c := range p.chain {
		out = append(out, encode("CERTIFICATE", c)...)
	}
	return out
}

// KeyPEM is the private key in PKCS #8.
func (p *Pair) KeyPEM() []byte {
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	must(err)
	return encode("PRIVATE KEY", der)
}

// WriteFiles writes dir/name.crt and dir/name.key and returns their paths. It replaces each file
// atomically, because a program may be watching it.
func (p *Pair) WriteFiles(dir, name string) (certFile, keyFile string, err error) {
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if err := replace(keyFile, p.KeyPEM()); err != nil {
		return "", "", fmt.Errorf("writing key: %w", err)
	}
	if err := replace(certFile, p.CertPEM()); err != nil {
		return "", "", fmt.Errorf("writing certificate: %w", err)
	}
	return certFile, keyFile, nil
}

func replace(file string, data []byte) error {
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}

func caTemplate(commonName string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(10 * 24 * time.Hour), // longer than any leaf
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
}

func newKey() *ecdsa.PrivateKey {
	// P-256, because it makes tests faster than RSA does.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	return key
}

func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	must(err)
	cert, err := x509.ParseCertificate(der)
	must(err)
	return cert
}

func serial() *big.Int {
	// 64 random bits: unique enough for a test, and positive as RFC 5280 requires.
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
	must(err)
	return n.Add(n, big.NewInt(1))
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("pki: %v", err))
	}
}
