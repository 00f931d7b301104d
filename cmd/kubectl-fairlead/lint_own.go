package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	certutil "k8s.io/client-go/util/cert"

	"github.com/fairlead-proxy/fairlead/certs"
)

// own checks the certificates that the flags name, by themselves.
func (l *linter) own() {
	if l.tlsCert != "" {
		l.serving("serving certificate", l.tlsCert, l.tlsKey, l.names)
	}
	for _, flag := range l.sniPairs {
		cert, key, names := splitSNI(flag)
		var want []string
		for name := range strings.SplitSeq(names, ",") {
			if name != "" && !strings.Contains(name, "*") {
				want = append(want, name)
			}
		}
		l.serving("SNI certificate "+cert, cert, key, want)
	}
	// With a cluster to compare with, live does more.
	if l.proxyCert != "" && l.kubeconfig == "" {
		if chain := l.pair("proxy client certificate", l.proxyCert, l.proxyKey); chain != nil {
			l.found = append(l.found, certs.CheckProxyClient(chain, nil)...)
		}
	}
	before := len(l.found)
	l.bundle("client CA", l.clientCA)
	l.bundle("request-header CA", l.requestHeaderCA)
	if l.clientCA == "" || l.requestHeaderCA == "" || len(l.found) > before {
		return
	}
	_, err := certs.New(certs.Config{ClientCA: l.clientCA, RequestHeaderCA: l.requestHeaderCA, AllowedNames: l.allowedNames})
	if err != nil {
		l.error("client CA", "use separate CAs, or set --requestheader-allowed-names to the front proxies' common names", "%v", err)
	}
}

func (l *linter) serving(object, cert, key string, names []string) {
	chain := l.pair(object, cert, key)
	if chain == nil {
		return
	}
	for _, f := range certs.CheckServing(chain, names) {
		f.Object = object
		l.found = append(l.found, f)
	}
	if len(chain[0].DNSNames)+len(chain[0].IPAddresses) == 0 {
		l.error(object, "have it issued with the names and addresses that clients use", "it has no subject alternative name, so no client will accept it")
	}
}

// pair reads a key pair as serve does. Nil: it cannot be used, which is a finding.
func (l *linter) pair(object, cert, key string) []*x509.Certificate {
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		l.error(object, "put a certificate and its own key into "+cert+" and "+key, "the pair cannot be used: %v", err)
		return nil
	}
	chain, err := certutil.CertsFromFile(cert)
	if err != nil {
		l.error(object, "repair "+cert, "it cannot be read: %v", err)
	}
	return chain
}

func (l *linter) bundle(object, file string) {
	if file == "" {
		return
	}
	data, err := os.ReadFile(file)
	if err != nil {
		l.error(object, "make it readable", "reading %s: %v", file, err)
		return
	}
	l.found = append(l.found, certs.CheckBundle(fmt.Sprintf("%s %s", object, file), data)...)
}
