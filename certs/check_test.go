package certs

import (
	"crypto/x509"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// begins compares the beginnings of findings with want, and checks that each finding is one line
// that ends with an instruction.
func begins(t *testing.T, name string, got []Finding, want ...string) {
	t.Helper()
	var lines []string
	for i, f := range got {
		line := f.String()
		if f.Message == "" || f.Do == "" || strings.Contains(line, "\n") || !strings.HasSuffix(line, f.Do) {
			t.Errorf("%s: not one line with an instruction: %q", name, line)
		}
		if i < len(want) && strings.HasPrefix(line, want[i]) {
			line = want[i]
		}
		lines = append(lines, line)
	}
	check.Same(t, want, lines, "%s", name)
}

func TestCheckProxyClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientCA, proxyCA := pki.NewCA("kubernetes"), pki.NewCA("front-proxy-ca")
		day := 24 * time.Hour
		leaf := func(ca *pki.CA, cn string, left time.Duration) []*x509.Certificate {
			return ca.Issue(pki.Leaf{CommonName: cn, NotBefore: time.Now().Add(-300 * day), NotAfter: time.Now().Add(left)}).Chain()
		}
		with := func(edit ...string) map[string][]byte {
			m := map[string][]byte{
				"client-ca-file":                     clientCA.PEM(),
				"requestheader-client-ca-file":       proxyCA.PEM(),
				"requestheader-username-headers":     []byte(`["X-Remote-User"]`),
				"requestheader-group-headers":        []byte(`["X-Remote-Group"]`),
				"requestheader-uid-headers":          []byte(`["x-remote-uid"]`),
				"requestheader-extra-headers-prefix": []byte(`["X-Remote-Extra-"]`),
				"requestheader-allowed-names":        []byte(`["front-proxy-client"]`),
			}
			for i := 0; i < len(edit); i += 2 {
				m[edit[i]] = []byte(edit[i+1])
			}
			return m
		}
		good := leaf(proxyCA, "front-proxy-client", 100*day)
		const e, w = "error: proxy client certificate: ", "warning: proxy client certificate: "
		begins(t, "good", CheckProxyClient(good, with()))
		begins(t, "none", CheckProxyClient(nil, with()), e+"there is none")
		begins(t, "unread", CheckProxyClient(good, nil), w+"it could not be compared")
		begins(t, "soon", CheckProxyClient(leaf(proxyCA, "front-proxy-client", 20*day), with()), w+`certificate "front-proxy-client" expires in 20 days; renew it`)
		begins(t, "sooner", CheckProxyClient(leaf(proxyCA, "front-proxy-client", 20*time.Hour), with()), w+`certificate "front-proxy-client" expires in 20 hours`)
		begins(t, "in time", CheckProxyClient(leaf(proxyCA, "front-proxy-client", 30*day), with()))
		begins(t, "at its end", CheckProxyClient(leaf(proxyCA, "front-proxy-client", 0), with()), e+`certificate "front-proxy-client" expired at 2000-01-01T00:00:00Z`)
		begins(t, "over", CheckProxyClient(leaf(proxyCA, "front-proxy-client", -day), with()),
			e+`certificate "front-proxy-client" expired at 1999-12-31T00:00:00Z`, e+`the cluster's request-header CA "front-proxy-ca" does not verify`)
		begins(t, "not yet", CheckProxyClient(proxyCA.Issue(pki.Leaf{CommonName: "front-proxy-client", NotBefore: time.Now().Add(time.Hour)}).Chain(), with()),
			e+`certificate "front-proxy-client" is not valid before`, e+"the cluster's request-header CA")
		begins(t, "another CA", CheckProxyClient(leaf(clientCA, "front-proxy-client", 100*day), with()), e+`the cluster's request-header CA "front-proxy-ca" does not verify "front-proxy-client"`)
		begins(t, "another name", CheckProxyClient(leaf(proxyCA, "fairlead", 100*day), with()), e+`its common name "fairlead" is not among the cluster's allowed names ["front-proxy-client"]; add "fairlead" to`)
		begins(t, "any name", CheckProxyClient(good, with("requestheader-allowed-names", "[]")), w+"every certificate of the cluster's request-header CA counts as a front proxy")
		begins(t, "one CA for all", CheckProxyClient(good, with("requestheader-allowed-names", "[]", "client-ca-file", string(proxyCA.PEM()))), e+"in this cluster every user can impersonate every other")
		begins(t, "one CA for all, and one name", CheckProxyClient(good, with("client-ca-file", string(proxyCA.PEM()))))
		begins(t, "broken client CA", CheckProxyClient(good, with("client-ca-file", "x")), e+"the cluster's client CA is broken")
		begins(t, "no CA", CheckProxyClient(good, with("requestheader-client-ca-file", "")), e+"the cluster has no usable request-header CA")
		begins(t, "kubeadm", CheckProxyClient(good, with("requestheader-uid-headers", "")), w+"the cluster does not trust X-Remote-Uid, so that part of a user's identity is lost; start kube-apiserver with --requestheader-uid-headers=X-Remote-Uid")
		begins(t, "no headers", CheckProxyClient(good, with("requestheader-username-headers", `["X-User"]`)), e+"the cluster does not trust X-Remote-User")
		begins(t, "broken", CheckProxyClient(good, with("requestheader-allowed-names", "x")), e+"the authentication ConfigMap is broken")
	})
}

func TestCheckServing(t *testing.T) {
	ca := pki.NewCA("ca")
	chain := ca.Issue(pki.Leaf{CommonName: "fairlead", Names: []string{"fairlead.example.com", "10.0.0.1"}}).Chain()
	begins(t, "good", CheckServing(chain, []string{"fairlead.example.com", "10.0.0.1"}))
	begins(t, "none", CheckServing(nil, nil), "error: serving certificate: there is none")
	begins(t, "names", CheckServing(chain, []string{"kubernetes.default.svc", "10.96.0.1"}),
		`error: serving certificate: clients that use "kubernetes.default.svc" will refuse it`, `error: serving certificate: clients that use "10.96.0.1" will refuse it`)
	client := ca.Issue(pki.Leaf{Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}).Chain()
	begins(t, "usage", CheckServing(client, nil), "error: serving certificate: it is not a server certificate")
	begins(t, "any usage", CheckServing(ca.Issue(pki.Leaf{Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}).Chain(), nil))
	over := ca.Issue(pki.Leaf{CommonName: "fairlead", NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}).Chain()
	begins(t, "over", CheckServing(over, nil), `error: serving certificate: certificate "fairlead" expired at`)
}

func TestCheckBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pki.NewCA("a"), pki.NewCA("b")
		begins(t, "good", CheckBundle("client CA", pki.Bundle(a, b)))
		begins(t, "cut", CheckBundle("client CA", append(a.PEM(), b.PEM()[:100]...)), "error: client CA: it is not usable")
		time.Sleep(8 * 24 * time.Hour)
		begins(t, "soon", CheckBundle("client CA", pki.Bundle(a, b)), `warning: client CA: CA "a" expires in 2 days; remove it if`, `warning: client CA: CA "b" expires in 2 days`)
	})
}

// Findings are short: times are in days or hours, and of many CAs only some are named.
func TestShortFindings(t *testing.T) {
	for d, want := range map[time.Duration]string{47*time.Hour + 59*time.Minute: "47 hours", 48 * time.Hour: "2 days", 71 * time.Hour: "2 days", 72 * time.Hour: "3 days"} {
		check.Same(t, want, days(d), "%v", d)
	}
	var cas []*x509.Certificate
	for _, want := range []string{"", `"a"`, `"a", "b"`, `"a", "b", "c"`, `"a", "b", "c"`} {
		check.Same(t, want, subjects(cas), "of %d", len(cas))
		cas = append(cas, pki.NewCA(string(rune('a'+len(cas)))).Certificate)
	}
}

func TestCheckBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "v1beta1.metrics.k8s.io"
		b := &registry.Backend{ServerName: "metrics-server.kube-system.svc"}
		ca, next := pki.NewCA("backend CA"), pki.NewCA("next CA")
		good := ca.Issue(pki.Leaf{CommonName: "metrics", Names: []string{b.ServerName}}).Chain()
		live := func(chains ...[]*x509.Certificate) map[string][]*x509.Certificate {
			m := make(map[string][]*x509.Certificate)
			for i, c := range chains {
				m[string(rune('a'+i))] = c
			}
			return m
		}
		const e, w = "error: APIService " + name + ": ", "warning: APIService " + name + ": "
		// The test CAs are valid for ten days: no warning for a quarter of that.
		begins(t, "good", CheckBackend(name, b, ca.PEM(), live(good, good)))
		begins(t, "not asked", CheckBackend(name, b, ca.PEM(), nil))
		begins(t, "system roots", CheckBackend(name, b, nil, live(good)), e+`endpoint a: UnknownAuthority: the backend's certificate "metrics" is signed by "backend CA", which the system's root store does not hold; put the CA`)
		begins(t, "insecure", CheckBackend(name, &registry.Backend{Insecure: true}, nil, live(good)), w+"its backend is not verified")
		begins(t, "rotation", CheckBackend(name, b, pki.Bundle(ca, next), live(good)), w+`CA "next CA" of its bundle verifies no endpoint; remove it once`)
		begins(t, "rotation, not asked", CheckBackend(name, b, pki.Bundle(ca, next), nil))
		begins(t, "rotation, with another fault", CheckBackend(name, b, pki.Bundle(ca, next), live(good, pki.NewCA("x").Issue(pki.Leaf{Names: []string{b.ServerName}}).Chain())), e+"endpoint b: UnknownAuthority")
		begins(t, "half", CheckBackend(name, b, pki.Bundle(next), live(good, next.Issue(pki.Leaf{Names: []string{b.ServerName}}).Chain())), e+`endpoint a: UnknownAuthority: the backend's certificate "metrics" is signed by "backend CA"`)
		begins(t, "no PEM", CheckBackend(name, b, []byte("x"), live(good)), e+"its CA bundle is not usable", e+"endpoint a: the CA bundle holds no readable certificate")
		begins(t, "a part", CheckBackend(name, b, append(ca.PEM(), next.PEM()[:100]...), live(good)), w+"a part of its CA bundle is ignored")
		begins(t, "wrong name", CheckBackend(name, b, ca.PEM(), live(ca.Issue(pki.Leaf{Names: []string{"other"}}).Chain())), e+"endpoint a: WrongServerName: the backend's certificate")
		begins(t, "no SAN", CheckBackend(name, b, ca.PEM(), live(ca.Issue(pki.Leaf{CommonName: "metrics"}).Chain())), e+`endpoint a: MissingSAN: the backend's certificate "metrics" has no subject alternative name`)
		begins(t, "SHA-1", CheckBackend(name, b, ca.PEM(), live(ca.Issue(pki.Leaf{Names: []string{b.ServerName}, SHA1: true}).Chain())), e+"endpoint a: InsecureSHA1: the backend's certificate")
		begins(t, "nothing presented", CheckBackend(name, b, ca.PEM(), live(nil)), e+"endpoint a: InvalidCertificate: the server presented no certificate")
		time.Sleep(20 * time.Hour)
		begins(t, "renewal", CheckBackend(name, b, ca.PEM(), live(good)), w+`endpoint a: certificate "metrics" expires in 4 hours; renew it at the backend`)
		time.Sleep(8 * 24 * time.Hour)
		begins(t, "CA soon", CheckBackend(name, b, ca.PEM(), nil), w+`CA "backend CA" expires in 28 hours; add its successor to the bundle`)
		time.Sleep(8 * 24 * time.Hour)
		begins(t, "all over", CheckBackend(name, b, ca.PEM(), live(good)), e+`CA "backend CA" expired at 2000-01-11T00:00:00Z; remove it, and add its successor`, e+`endpoint a: ExpiredCertificate: the backend's certificate "metrics" expired at`)
	})
}
