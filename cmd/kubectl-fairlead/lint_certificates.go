package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

func (l *linter) own() {
	for _, pair := range l.SNI() {
		names := slices.DeleteFunc(pair.Names, func(n string) bool { return n == "" || strings.Contains(n, "*") })
		l.serving("SNI certificate "+pair.Cert, pair, names)
	}
	if l.Certs.Serving.Cert != "" {
		l.serving("serving certificate", l.Certs.Serving, l.names)
		l.names = nil // the certificates of other nodes' kube-apiservers need not have this node's
	}
	if l.Certs.ProxyClient.Cert != "" && l.kubeconfig == "" { // with a cluster, inspect checks more
		l.proxyClient(nil)
	}
	before, c := len(l.Findings), &l.Certs
	l.bundle("client CA", c.ClientCA)
	l.bundle("request-header CA", c.RequestHeaderCA)
	failed := func(f certs.Finding) bool { return f.Severity == certs.SeverityError }
	if c.ClientCA == "" || c.RequestHeaderCA == "" || slices.ContainsFunc(l.Findings[before:], failed) {
		return
	}
	cas := certs.Config{ClientCA: c.ClientCA, RequestHeaderCA: c.RequestHeaderCA, AllowedNames: c.AllowedNames}
	if _, err := certs.New(cas); err != nil {
		l.Error("client CA",
			"use separate CAs, or set --requestheader-allowed-names to the front proxies' common names", "%v", err)
	}
}

func (l *linter) serving(object string, of certs.PairSource, names []string) {
	chain := l.pair(object, of)
	if chain == nil {
		return
	}
	l.CheckServing(object, chain, names)
	chosen := func(name string) bool { return net.ParseIP(name) == nil && chain[0].VerifyHostname(name) == nil }
	l.names = slices.DeleteFunc(slices.Clone(l.names), chosen) // by SNI, as serve does
	if len(chain[0].DNSNames)+len(chain[0].IPAddresses) == 0 {
		l.Error(object, "have it issued with the names and addresses that clients use",
			"it has no subject alternative name, so no client will accept it")
	}
}

// pair reads a key pair as serve does. It returns nil after reporting a pair that cannot be used.
func (l *linter) pair(object string, of certs.PairSource) []*x509.Certificate {
	both, err := tls.LoadX509KeyPair(of.Cert, of.Key)
	if err != nil {
		l.Error(object, "put a certificate and its own key into "+of.Cert+" and "+of.Key,
			"the pair cannot be used: %v", err)
		return nil
	}
	data, _ := os.ReadFile(of.Cert) // it was readable
	chain, err := bundle.Parse(data)
	if err != nil {
		l.Error(object, "repair "+of.Cert, "it cannot be read: %v", err)
	}
	if of.Cert == l.Certs.ProxyClient.Cert {
		l.proxy = &both
	}
	return chain
}

func (l *linter) bundle(object, file string) {
	if file == "" {
		return
	}
	data, _ := os.ReadFile(file) // it was readable
	l.CheckBundle(object+" "+file, data)
}

// credentials checks the kubeconfig's client certificate, which is not renewed with the cluster's: nobody gets in then.
func (l *linter) credentials(cfg *rest.Config) {
	const object, do = "kubeconfig", "renew it; Fairlead's own by kubeadm kubeconfig user " +
		"--client-name=system:fairlead: Fairlead loads it without a restart"
	own := rest.CopyConfig(cfg)
	if err := rest.LoadTLSFiles(own); err != nil || len(own.CertData) == 0 {
		return // a token, or a missing file, which connecting reports
	}
	chain, err := certutil.ParseCertsPEM(own.CertData)
	if err != nil {
		l.Error(object, do, "reading its client certificate: %v", err)
	}
	l.Expiry(object, chain, "its client certificate", do)
}

// usable returns the APIServices that kube-apiserver's own aggregator can use: the table's verdicts are lint's own.
func usable(ctx context.Context, client rest.Interface) map[string]bool {
	var list apiregistrationv1.APIServiceList
	data, err := client.Get().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil || json.Unmarshal(data, &list) != nil {
		return nil // then severities stay as found
	}
	out := make(map[string]bool)
	for i := range list.Items {
		out[list.Items[i].Name] = helper.IsAPIServiceConditionTrue(&list.Items[i], apiregistrationv1.Available)
	}
	return out
}

// severity returns a warning if kube-apiserver can use the APIService: a failure seen from here may
// not occur where Fairlead runs. What leads back to Fairlead does, everywhere.
func (l *linter) severity(e *registry.Entry) string {
	if l.usable[e.Name] && e.Backend.Namespace+"/"+e.Backend.Service != l.Behind {
		return certs.SeverityWarning
	}
	return certs.SeverityError
}

// shown is what an endpoint presented, and the CAs it accepts. If err is set, it was not reached.
type shown struct {
	chain []*x509.Certificate
	asked *tls.CertificateRequestInfo
	err   error
}

// ask asks all endpoints at once: each that does not answer takes chainOf's limit. It sends no client certificate.
func (l *linter) ask(ctx context.Context, entries []*registry.Entry) map[*registry.Entry][]shown {
	all := make(map[*registry.Entry][]shown)
	rules := l.TableOptions().Reach
	var g errgroup.Group
	g.SetLimit(16) // concurrent handshakes
	for _, e := range entries {
		answers := make([]shown, len(e.Endpoints))
		all[e] = answers
		for i := range e.Endpoints {
			g.Go(func() error {
				address := e.Endpoints[i].Address
				answers[i] = chainOf(ctx, rules.Dial, address, e.Backend.NameAt(address))
				return nil
			})
		}
	}
	_ = g.Wait() // no function returns an error
	return all
}

// presented returns the chain of each endpoint, nil if that was not reached. Then it warns: Fairlead may run elsewhere.
func (l *linter) presented(e *registry.Entry, answers []shown) map[string][]*x509.Certificate {
	chains := make(map[string][]*x509.Certificate)
	for i, answer := range answers {
		address := e.Endpoints[i].Address
		chains[address] = answer.chain
		if answer.err != nil {
			do := joined("; there, ", "run lint where Fairlead runs", advice.For(answer.err.Error()))
			if l.byClusterIP {
				do += "; kube-apiserver reaches it by its ClusterIP: if nodes have no route to pods, " +
					"set --enable-aggregator-routing=false"
			}
			l.Warn("APIService "+e.Name, do, "endpoint %s: asking for its certificate: %v", address, answer.err)
		} else if l.proxy != nil {
			l.trusts("APIService "+e.Name, address, answer.asked)
		}
	}
	return chains
}

// trusts compares the proxy client certificate with the CAs that an extension server asks for. A
// server that names none may or may not trust it.
func (l *linter) trusts(object, address string, asked *tls.CertificateRequestInfo) {
	issuer := l.proxy.Leaf.Issuer.CommonName
	do := fmt.Sprintf("start it with --requestheader-client-ca-file, which must have %q, "+
		"and %q in --requestheader-allowed-names", issuer, l.proxy.Leaf.Subject.CommonName)
	if asked == nil {
		l.Warn(object, do,
			"endpoint %s asks for no client certificate, so it accepts no user from a front proxy", address)
	} else if err := asked.SupportsCertificate(l.proxy); err != nil {
		l.Error(object, do, "endpoint %s does not trust the CA %q of the proxy client certificate", address, issuer)
	}
}

func chainOf(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error),
	address, name string) (got shown) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // as for a probe
	defer cancel()
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return shown{err: err}
	}
	defer raw.Close()
	conn := tls.Client(raw, &tls.Config{
		ServerName: name, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // sends nothing; certs.CheckBackend verifies and reports
		GetClientCertificate: func(i *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			got.asked = i
			return &tls.Certificate{}, nil // send none
		},
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return shown{err: err}
	}
	got.chain = conn.ConnectionState().PeerCertificates
	return got
}
