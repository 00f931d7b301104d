package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// PKI is everything that a cluster's certificates hang on. The authorities are distinct on purpose: a program that trusts one for
// what only another may vouch for is caught.
type PKI struct {
	Dir string // folder of all its files

	Client     *Authority // vouches for users (--client-ca-file)
	FrontProxy *Authority // vouches for proxies that name users (--requestheader-client-ca-file)
	Serving    *Authority // vouches for servers: kube-apiserver, extension servers, kubelets, Fairlead

	Admin           Pair // a client of system:masters
	FrontProxyPair  Pair // CN front-proxy-client, the proxy client certificate
	ServiceAccounts Pair // signs ServiceAccount tokens; its certificate is used by nobody
}

// Pair is a certificate and its key, in PEM files.
type Pair struct {
	CertFile string // the certificate; empty: none
	KeyFile  string // its key; empty: none
}

// Authority issues certificates.
type Authority struct {
	CertFile string // the CA certificate, PEM

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Leaf says what a certificate is for.
type Leaf struct {
	// User is the common name: a user name, or the name of a server.
	User string

	// Groups become the organizations. Nil: none.
	Groups []string

	// Names are the host names and addresses of a server; with none the certificate is a client's.
	Names []string

	// NotAfter is the end. Zero: in a day, longer than any test and short enough to be worth nothing.
	NotAfter time.Time
}

// newPKI makes a whole PKI in dir.
func newPKI(dir string) (*PKI, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p := &PKI{Dir: dir}
	for _, a := range []struct {
		name string
		to   **Authority
	}{{"client-ca", &p.Client}, {"front-proxy-ca", &p.FrontProxy}, {"serving-ca", &p.Serving}} {
		var err error
		if *a.to, err = p.NewAuthority(a.name); err != nil {
			return nil, err
		}
	}
	for _, l := range []struct {
		by   *Authority
		file string
		leaf Leaf
		to   *Pair
	}{
		{p.Client, "admin", Leaf{User: "admin", Groups: []string{"system:masters"}}, &p.Admin},
		{p.FrontProxy, "front-proxy-client", Leaf{User: "front-proxy-client"}, &p.FrontProxyPair},
		{p.Client, "service-accounts", Leaf{User: "service-accounts"}, &p.ServiceAccounts},
	} {
		var err error
		if *l.to, err = l.by.Issue(l.file, l.leaf); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// NewAuthority makes one more authority, for tests of rotation and of foreign certificates. Its files are called name.
func (p *PKI) NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := template(name, time.Time{})
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pair, err := writePair(p.Dir, name, der, key)
	return &Authority{CertFile: pair.CertFile, dir: p.Dir, cert: cert, key: key}, err
}

// Issue makes a key pair for l and writes it to files called name. An existing pair of that name is replaced in one step per file,
// as a rotation would.
func (a *Authority) Issue(name string, l Leaf) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	template := template(l.User, l.NotAfter)
	template.Subject.Organization = l.Groups
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, n := range l.Names {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("issuing certificate %s: %w", name, err)
	}
	return writePair(a.dir, name, der, key)
}

func template(commonName string, notAfter time.Time) *x509.Certificate {
	now := time.Now()
	if notAfter.IsZero() {
		notAfter = now.Add(24 * time.Hour)
	}
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // crypto/rand.Reader never fails
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    now.Add(-time.Hour), // so that an already ended NotAfter can be asked for
		NotAfter:     notAfter,
	}
}

func writePair(dir, name string, der []byte, key *ecdsa.PrivateKey) (Pair, error) {
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	p := Pair{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}
	if err := writeFile(p.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})); err != nil {
		return Pair{}, err
	}
	return p, writeFile(p.CertFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// writeFile replaces a file in one step: its readers may be watching it.
func writeFile(file string, data []byte) error {
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}
