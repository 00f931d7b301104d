package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"testing/synctest"
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

func TestSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := pki.NewCA("ca")
		pair := ca.Issue(pki.Leaf{Names: []string{"x.test"}})
		if err := verify(ca, pair); err != nil {
			t.Errorf("inside the bubble: %v", err)
		}
		time.Sleep(25 * time.Hour)
		if err := verify(ca, pair); err == nil {
			t.Error("a day later: still valid")
		}
	})
}

func TestWriteFiles(t *testing.T) {
	pair := pki.NewCA("root").Intermediate("between").Issue(pki.Leaf{CommonName: "someone", Organizations: []string{"a", "b"}})
	cert, key, err := pair.WriteFiles(t.TempDir(), "client")
	if err != nil {
		t.Fatal(err)
	}
	loaded := must.Get(tls.LoadX509KeyPair(cert, key))(t)
	if len(loaded.Certificate) != 2 || loaded.Leaf.Subject.String() != "CN=someone,O=a+O=b" {
		t.Errorf("%d certificates for %s", len(loaded.Certificate), loaded.Leaf.Subject)
	}
}

func TestReadCA(t *testing.T) {
	root := pki.NewCA("root")
	for name, ca := range map[string]*pki.CA{"root": root, "intermediate": root.Intermediate("between")} {
		t.Run(name, func(t *testing.T) {
			cert, key, err := ca.WriteFiles(t.TempDir(), "ca")
			if err != nil {
				t.Fatal(err)
			}
			again := must.Get(pki.ReadCA(cert, key))(t)
			if err := verify(root, again.Issue(pki.Leaf{Names: []string{"x.test"}})); err != nil {
				t.Errorf("a certificate of the CA from the files: %v", err)
			}
			cert, key, err = ca.Issue(pki.Leaf{}).WriteFiles(t.TempDir(), "leaf")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := pki.ReadCA(cert, key); err == nil {
				t.Error("a leaf was accepted as a CA")
			}
		})
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
