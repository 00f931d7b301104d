package cluster

import (
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/try"
)

// PKI is everything that a cluster's certificates hang on. The authorities are distinct on purpose:
// a program that trusts one for what only another may vouch for is caught.
type PKI struct {
	Dir string // folder of all its files

	Client     *Authority // vouches for users (--client-ca-file)
	FrontProxy *Authority // vouches for proxies that name users (--requestheader-client-ca-file)
	Serving    *Authority // vouches for servers: kube-apiserver, extension servers, kubelets, Fairlead

	Admin           Pair // a client of Config.AdminGroup
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
	CA       *pki.CA // itself, for what needs no files
	CertFile string  // the CA certificate, PEM

	dir string // of its files
}

// Leaf says what a certificate is for.
type Leaf struct {
	// User is the common name: a user name, or the name of a server.
	User string

	// Groups become the organizations. Nil: none.
	Groups []string

	// Names are the host names and addresses of a server; with none the certificate is a client's.
	Names []string

	// NotAfter is the end. Zero: in a day, longer than any test and short enough to be worth
	// nothing.
	NotAfter time.Time
}

// newPKI makes a whole PKI in dir.
func newPKI(dir, adminGroup string) (p *PKI, err error) {
	defer try.Catch(&err)
	try.Do(os.MkdirAll(dir, 0o700))
	p = &PKI{Dir: dir}
	p.Client = try.Get(p.NewAuthority("client-ca"))
	p.FrontProxy = try.Get(p.NewAuthority("front-proxy-ca"))
	p.Serving = try.Get(p.NewAuthority("serving-ca"))
	p.Admin = try.Get(p.Client.Issue("admin", Leaf{User: "admin", Groups: []string{adminGroup}}))
	p.FrontProxyPair = try.Get(p.FrontProxy.Issue("front-proxy-client", Leaf{User: "front-proxy-client"}))
	p.ServiceAccounts = try.Get(p.Client.Issue("service-accounts", Leaf{User: "service-accounts"}))
	return p, nil
}

// NewAuthority makes one more authority, for tests of rotation and of foreign certificates. Its
// files are called name.
func (p *PKI) NewAuthority(name string) (*Authority, error) {
	a := &Authority{CA: pki.NewCA(name), dir: p.Dir}
	var err error
	if a.CertFile, _, err = a.CA.WriteFiles(p.Dir, name); err != nil {
		return nil, fmt.Errorf("making authority %s: %w", name, err)
	}
	return a, nil
}

// Issue makes a key pair for l and writes it to files called name. An existing pair of that name is
// replaced in one step per file, as a rotation would.
func (a *Authority) Issue(name string, l Leaf) (Pair, error) {
	usage := x509.ExtKeyUsageClientAuth
	if len(l.Names) > 0 {
		usage = x509.ExtKeyUsageServerAuth
	}
	leaf := a.CA.Issue(pki.Leaf{CommonName: l.User, Organizations: l.Groups, Names: l.Names, NotAfter: l.NotAfter, Usage: []x509.ExtKeyUsage{usage}})
	var p Pair
	var err error
	if p.CertFile, p.KeyFile, err = leaf.WriteFiles(a.dir, name); err != nil {
		return Pair{}, fmt.Errorf("issuing certificate %s: %w", name, err)
	}
	return p, nil
}
