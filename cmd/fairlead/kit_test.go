package main

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// writeFile writes a file and returns its name.
func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	must.Do(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// writePair writes a key pair to dir.
func writePair(t testing.TB, p *pki.Pair, dir, name string) (cert, key string) {
	t.Helper()
	return must.Get2(p.WriteFiles(dir, name))(t)
}

// kubeconfigText is a kubeconfig for server, with ca if it is not nil. user is a JSON object
// without its braces.
func kubeconfigText(server string, ca *pki.CA, user string) string {
	trust := ""
	if ca != nil {
		trust = fmt.Sprintf(`,"certificate-authority-data":%q`, base64.StdEncoding.EncodeToString(ca.PEM()))
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
		"clusters":[{"name":"c","cluster":{"server":%q%s}}],"users":[{"name":"u","user":{%s}}]}`, server, trust, user)
}

// embedded is a kubeconfig's user with p's certificate inline.
func embedded(p *pki.Pair) string {
	return fmt.Sprintf(`"client-certificate-data":%q,"client-key-data":%q`, base64.StdEncoding.EncodeToString(p.CertPEM()), base64.StdEncoding.EncodeToString(p.KeyPEM()))
}

// directoryOptions returns the options of a Fairlead with an empty directory and free ports.
func directoryOptions(t *testing.T) (*options, *pki.CA) {
	t.Helper()
	ca := pki.NewCA("ca")
	cert, key := writePair(t, ca.Issue(pki.Leaf{CommonName: "front", Names: []string{"localhost"}}), t.TempDir(), "front")
	o := &options{}
	o.addFlags(pflag.NewFlagSet("serve", pflag.ContinueOnError))
	o.registry, o.bindAddress, o.securePort, o.adminPort = "dir:"+t.TempDir(), "127.0.0.1", 0, 0
	o.tlsCert, o.tlsKey, o.proxyCert, o.proxyKey = cert, key, cert, key
	return o, ca
}

// aloneDoor builds everything that serve builds without a local apiserver, but does not serve.
func aloneDoor(t *testing.T, change func(*options)) (*door, *pki.CA) {
	t.Helper()
	o, ca := directoryOptions(t)
	change(o)
	return madeDoor(t, o, prometheus.NewRegistry()), ca
}

func madeDoor(t testing.TB, o *options, metrics *prometheus.Registry) *door {
	t.Helper()
	d := &door{o: o, log: slog.New(slog.DiscardHandler), metrics: metrics}
	t.Cleanup(d.closeListeners)
	must.Do(t, d.build(t.Context()))
	return d
}

// runDoor serves d until the test ends.
func runDoor(t *testing.T, d *door) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- d.serve(t.Context()) }()
	t.Cleanup(func() { must.Do(t, <-done) })
}

// buildDoor builds everything that serve builds, but does not serve. A CA of its own verifies the
// local apiserver.
func buildDoor(t testing.TB, metrics *prometheus.Registry, change func(*options, *pki.CA)) *door {
	t.Helper()
	dir := t.TempDir()
	ca := pki.NewCA("ca")
	pair := func(name string) (string, string) {
		return writePair(t, ca.Issue(pki.Leaf{CommonName: name, Names: []string{"localhost"}}), dir, name)
	}
	caFile := writeFile(t, filepath.Join(dir, "ca.crt"), string(ca.PEM()))
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1", CertificateAuthority: caFile}
	c.Contexts["c"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c"}, "c"
	o := &options{}
	must.Do(t, clientcmd.WriteToFile(*c, filepath.Join(dir, "kubeconfig")))
	o.addFlags(pflag.NewFlagSet("serve", pflag.ContinueOnError))
	o.kubeconfig, o.clientCA, o.bindAddress, o.securePort, o.adminPort = filepath.Join(dir, "kubeconfig"), caFile, "127.0.0.1", 0, 0
	o.tlsCert, o.tlsKey = pair("serving")
	o.proxyCert, o.proxyKey = pair("front-proxy-client")
	o.writeStatus, o.emitEvents, o.publishEndpoints, o.advertiseAddress = true, true, true, "192.0.2.1"
	o.access.path = filepath.Join(dir, "access.log")
	o.audit.path = filepath.Join(dir, "audit.log")
	o.audit.policy = writeFile(t, filepath.Join(dir, "policy.yaml"), "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
	change(o, ca)
	return madeDoor(t, o, metrics)
}
