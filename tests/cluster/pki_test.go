package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestAuthoritiesVouchForTheirOwn(t *testing.T) {
	p := must.Get(newPKI(t.TempDir(), "system:masters"))(t)
	server := must.Get(p.Serving.Issue("server", Leaf{User: "server", Names: []string{"api.wardle.svc", "127.0.0.1"}}))(t)
	ended := must.Get(p.Client.Issue("ended", Leaf{User: "late", NotAfter: time.Now().Add(-time.Minute)}))(t)
	client, anyone := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	for name, tc := range map[string]struct {
		pair  Pair
		by    *Authority
		usage []x509.ExtKeyUsage
		host  string
		bad   bool
	}{
		"admin by the client CA":       {pair: p.Admin, by: p.Client, usage: client},
		"admin by the front-proxy CA":  {pair: p.Admin, by: p.FrontProxy, usage: client, bad: true},
		"front proxy by its CA":        {pair: p.FrontProxyPair, by: p.FrontProxy, usage: client},
		"front proxy by the client CA": {pair: p.FrontProxyPair, by: p.Client, usage: client, bad: true},
		"server by its service name":   {pair: server, by: p.Serving, host: "api.wardle.svc"},
		"server by its address":        {pair: server, by: p.Serving, host: "127.0.0.1"},
		"server by another name":       {pair: server, by: p.Serving, host: "other.wardle.svc", bad: true},
		"server as a client":           {pair: server, by: p.Serving, usage: client, bad: true},
		"admin as a server":            {pair: p.Admin, by: p.Client, bad: true},
		"a certificate that has ended": {pair: ended, by: p.Client, usage: anyone, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := tls.LoadX509KeyPair(tc.pair.CertFile, tc.pair.KeyFile)
			if err != nil {
				t.Fatal(err)
			}
			pem := must.Get(os.ReadFile(tc.by.CertFile))(t)
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(pem)
			_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: tc.usage, DNSName: tc.host})
			if (err != nil) != tc.bad {
				t.Errorf("got %v, want an error: %t", err, tc.bad)
			}
		})
	}
}
