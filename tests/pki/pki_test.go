package pki_test

import (
	"crypto/x509"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A CA that another process reads issues the same chains.
func TestReadCA(t *testing.T) {
	root := pki.NewCA("root")
	for name, ca := range map[string]*pki.CA{"root": root, "intermediate": root.Intermediate("between")} {
		cert, key := must.Get2(ca.WriteFiles(t.TempDir(), "ca"))(t)
		pair := must.Get(pki.ReadCA(cert, key))(t).Issue(pki.Leaf{})
		between := x509.NewCertPool()
		between.AppendCertsFromPEM(pair.CertPEM())
		if _, err := pair.Certificate.Verify(x509.VerifyOptions{Roots: root.Pool(), Intermediates: between}); err != nil {
			t.Errorf("a certificate of the %s from the files: %v", name, err)
		}
	}
}
