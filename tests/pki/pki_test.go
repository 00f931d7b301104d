package pki_test

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestIssue(t *testing.T) {
	ca := pki.NewCA("ca")
	tests := []struct {
		name string
		pair *pki.Pair
		want bool
	}{
		{"good", ca.Issue(pki.Leaf{Names: []string{"x.test"}}), true},
		{"through an intermediate", ca.Intermediate("between").Issue(pki.Leaf{Names: []string{"x.test"}}), true},
		{"another CA of the same name", pki.NewCA("ca").Issue(pki.Leaf{Names: []string{"x.test"}}), false},
		{"another name", ca.Issue(pki.Leaf{Names: []string{"y.test"}}), false},
		{"common name only", ca.Issue(pki.Leaf{CommonName: "x.test"}), false},
		{"expired", ca.Issue(pki.Leaf{Names: []string{"x.test"}, NotAfter: time.Now().Add(-time.Minute)}), false},
		{"not valid yet", ca.Issue(pki.Leaf{Names: []string{"x.test"}, NotBefore: time.Now().Add(time.Minute)}), false},
		{"client only", ca.Issue(pki.Leaf{Names: []string{"x.test"}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}), false},
		{"SHA-1", ca.Issue(pki.Leaf{Names: []string{"x.test"}, SHA1: true}), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := verify(ca, tt.pair); (err == nil) != tt.want {
				t.Errorf("verifying: %v, want success %v", err, tt.want)
			}
		})
	}
}

// A CA that another process reads issues the same chains.
func TestReadCA(t *testing.T) {
	root := pki.NewCA("root")
	for name, ca := range map[string]*pki.CA{"root": root, "intermediate": root.Intermediate("between")} {
		cert, key, err := ca.WriteFiles(t.TempDir(), "ca")
		must.Do(t, err)
		again := must.Get(pki.ReadCA(cert, key))(t)
		if err := verify(root, again.Issue(pki.Leaf{Names: []string{"x.test"}})); err != nil {
			t.Errorf("a certificate of the %s from the files: %v", name, err)
		}
	}
}

// verify verifies the server's chain as a TLS client does.
func verify(ca *pki.CA, pair *pki.Pair) error {
	between := x509.NewCertPool()
	between.AppendCertsFromPEM(pair.CertPEM())
	_, err := pair.TLS().Leaf.Verify(x509.VerifyOptions{
		DNSName: "x.test", Roots: ca.Pool(), Intermediates: between, CurrentTime: time.Now(),
	})
	return err
}
