package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Any two files give a pair that can serve, or an error and the former pair.
func FuzzPair(f *testing.F) {
	ca := pki.NewCA("ca")
	pair := ca.Intermediate("middle").Issue(pki.Leaf{CommonName: "leaf", Names: []string{"localhost"}})
	cert, key := pair.CertPEM(), pair.KeyPEM()
	f.Add(cert, key)
	f.Add(cert[:len(cert)-30], key)
	f.Add(cert, key[:len(key)-30])
	f.Add(key, cert)
	f.Add(ca.PEM(), key)
	f.Add(append(append([]byte{}, key...), cert...), key)
	f.Add([]byte{}, []byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		p := NewPair()
		before := p.Changed()
		if err := p.take([][]byte{cert, key}); err != nil {
			check.Same(t, false, p.Certificate() != nil || p.Changed() != before, "a refused pair is in force")
			return
		}
		c := p.Certificate()
		must.Be(t, c.Leaf != nil && c.PrivateKey != nil, "an incomplete pair: %+v", c)
		must.Come(t, time.Minute, "what Changed has returned is closed", before)
		names := newServingNames(c, []*Pair{p})
		for _, name := range append(certificateNames(c), "", "nobody.test") {
			got, err := names.certificate(&tls.ClientHelloInfo{ServerName: name})
			check.Same(t, true, err == nil && got == c, "%q: %v, %v", name, got, err)
		}
	})
}

// Whatever the files and the ConfigMap contain, no client is trusted unless the bundle in force
// verifies it, and a shared bundle without allowed names is never in force.
func FuzzClientTrust(f *testing.F) {
	one, two := pki.NewCA("one"), pki.NewCA("two")
	names, _ := json.Marshal([]string{"front"})
	f.Add(one.PEM(), two.PEM(), []byte{})
	f.Add(one.PEM(), one.PEM(), []byte{})
	f.Add(one.PEM(), one.PEM(), names)
	f.Add(two.PEM(), one.PEM(), []byte{})
	f.Add(pki.Bundle(one, two), two.PEM(), []byte("[1]"))
	f.Add(one.PEM()[:100], two.PEM(), []byte("{"))
	f.Add(one.Intermediate("m").PEM(), one.PEM(), []byte("null"))
	jane := one.Issue(pki.Leaf{CommonName: "jane"}).Certificate
	verifies := func(bundle []byte) bool {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(bundle)
		_, err := jane.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err == nil
	}
	f.Fuzz(func(t *testing.T, client, proxy, allowed []byte) {
		c := newClients(Config{TrustConfigMap: true}, func() {})
		data := map[string][]byte{"client-ca-file": client, "requestheader-client-ca-file": proxy, "requestheader-allowed-names": allowed}
		err := c.takeConfigMap(data, nil)
		in := c.current.Load()
		check.Same(t, false, err != nil && in.generation != 0, "refused (%v) but in force", err)
		check.Is(t, nil, in.check(), "what is in force")
		user, front := worth(c, []*x509.Certificate{jane})
		check.Same(t, false, user && (err != nil || !verifies(client)) || front && (err != nil || !verifies(proxy)), "trusted as user: %v, as front proxy: %v, by a bundle that does not verify it", user, front)
	})
}
