package cluster

import (
	"crypto/x509"
	"os"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/try"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// PKI has all keys and certificates of a cluster. Each purpose has its own CA, so that a program
// that trusts the wrong one is noticed.
type PKI struct {
	Dir string // folder of all its files

	Client     *Authority // verifies users (--client-ca-file)
	FrontProxy *Authority // verifies front proxies (--requestheader-client-ca-file)
	Serving    *Authority // verifies servers: kube-apiserver, extension servers, kubelets, Fairlead

	Admin           Pair // a client in Config.AdminGroup
	FrontProxyPair  Pair // CN front-proxy-client, the proxy client certificate
	ServiceAccounts Pair // signs ServiceAccount tokens; its certificate is unused
}

// Pair is a certificate and its key, in PEM files.
type Pair struct {
	CertFile string // the certificate; empty: none
	KeyFile  string // its key; empty: none
}

// Authority issues certificates.
type Authority struct {
	CA       *pki.CA // the CA itself, for use without files
	CertFile string  // the CA certificate, PEM

	dir string // of its files
}

// Leaf describes a certificate.
type Leaf struct {
	User     string    // the common name: a user's or a server's name
	Groups   []string  // become the organizations. Nil: none.
	Names    []string  // a server's DNS names and addresses; without any, it is a client certificate
	NotAfter time.Time // its expiry. Zero: in a day, longer than any test.
}

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

// NewAuthority creates another CA, for tests of rotation and of untrusted certificates. Its files are called name.
func (p *PKI) NewAuthority(name string) (a *Authority, err error) {
	a = &Authority{CA: pki.NewCA(name), dir: p.Dir}
	a.CertFile, _, err = a.CA.WriteFiles(p.Dir, name)
	return a, err
}

// Issue creates a key pair for l in files called name. It replaces each existing file atomically, as a rotation does.
func (a *Authority) Issue(name string, l Leaf) (p Pair, err error) {
	usage := x509.ExtKeyUsageClientAuth
	if len(l.Names) > 0 {
		usage = x509.ExtKeyUsageServerAuth
	}
	leaf := a.CA.Issue(pki.Leaf{CommonName: l.User, Organizations: l.Groups, Names: l.Names, NotAfter: l.NotAfter, Usage: []x509.ExtKeyUsage{usage}})
	p.CertFile, p.KeyFile, err = leaf.WriteFiles(a.dir, name)
	return p, err
}
