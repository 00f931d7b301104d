package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/proxy/front"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

var ca = pki.NewCA("ca") // signs the certificates of every door, and of the servers behind it

// writeFile writes a file and returns its name.
func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	must.Do(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// kubeconfigText is a kubeconfig for a server, with its CA if that is not nil. user is a JSON
// object without its braces.
func kubeconfigText(server string, by *pki.CA, user string) string {
	trust := ""
	if by != nil {
		trust = fmt.Sprintf(`,"certificate-authority-data":%q`, base64.StdEncoding.EncodeToString(by.PEM()))
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
		"clusters":[{"name":"c","cluster":{"server":%q%s}}],"users":[{"name":"u","user":{%s}}]}`, server, trust, user)
}

// embedded is a kubeconfig's user with p's certificate inline.
func embedded(p *pki.Pair) string {
	return fmt.Sprintf(`"client-certificate-data":%q,"client-key-data":%q`, base64.StdEncoding.EncodeToString(p.CertPEM()), base64.StdEncoding.EncodeToString(p.KeyPEM()))
}

// flagSet has all flags, group by group.
func flagSet(o *options) *pflag.FlagSet {
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	fs.SortFlags = false
	groups := o.flagGroups()
	for _, name := range groups.Order {
		fs.AddFlagSet(groups.FlagSets[name])
	}
	return fs
}

// serving returns the options of a command line, beside its key pairs and free ports.
func serving(t testing.TB, args ...string) *options {
	t.Helper()
	o := &options{}
	cert, key := must.Get2(ca.Issue(pki.Leaf{CommonName: "front", Names: []string{"localhost"}}).WriteFiles(t.TempDir(), "front"))(t)
	must.Do(t, flagSet(o).Parse(append([]string{
		"--tls-cert-file", cert, "--tls-private-key-file", key, "--proxy-client-cert-file", cert, "--proxy-client-key-file", key,
		"--bind-address=127.0.0.1", "--secure-port=0", "--admin-secure-port=0",
	}, args...)))
	o.registry = must.Get(parseSources(o.registryFlag))(t)
	return o
}

// newDoor builds everything that serve builds with a command line, but does not serve.
func newDoor(t testing.TB, args ...string) *server {
	t.Helper()
	d := must.Get(build(t.Context(), newProcess(serving(t, args...), slog.New(slog.DiscardHandler))))(t)
	t.Cleanup(d.ports.close)
	return d
}

// aloneDoor has an empty directory of manifests, and no local apiserver.
func aloneDoor(t testing.TB, args ...string) *server {
	t.Helper()
	return newDoor(t, append([]string{"--registry=dir:" + t.TempDir()}, args...)...)
}

// doorBefore has a local apiserver at an address.
func doorBefore(t testing.TB, server string, args ...string) *server {
	t.Helper()
	return newDoor(t, append([]string{"--kubeconfig", writeFile(t, filepath.Join(t.TempDir(), "kubeconfig"), kubeconfigText(server, ca, ""))}, args...)...)
}

// start serves until the test ends or stop is called, which waits for the drain.
func (s *server) start(t *testing.T) (stop func()) {
	t.Helper()
	return must.Run(t, func(ctx context.Context) error { return cmp.Or(s.serve(ctx), ctx.Err()) })
}

// claim writes an APIService with URLs to the directory.
func (s *server) claim(t testing.TB, group, urls string) {
	t.Helper()
	const manifest = "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.%[1]s, annotations: {fairlead.dev/probe-interval: 1s, fairlead.dev/url: %[2]q}}\n" +
		"spec: {group: %[1]s, version: v1, groupPriorityMinimum: 100, versionPriority: 100, caBundle: %[3]s, service: {namespace: x, name: nobody}}\n"
	writeFile(t, filepath.Join(s.o.registry.dir, group+".yaml"), fmt.Sprintf(manifest, group, urls, base64.StdEncoding.EncodeToString(ca.PEM())))
}

func urlOf(l *front.Listener) string { return "https://" + l.Addr().String() }

// clientOf speaks only HTTP/2 or only HTTP/1.1 with a door, and shows a pair unless it is nil.
func clientOf(t *testing.T, http2 bool, pair *pki.Pair) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}, Protocols: ask.Only(http2)}
	if pair != nil {
		tr.TLSClientConfig.Certificates = []tls.Certificate{pair.TLS()}
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// serverAt serves over both protocols at an address of loopback until the test ends. Its
// certificate names what names says, or only that address, as those of control plane nodes do.
func serverAt(t testing.TB, ip string, h http.HandlerFunc, names ...string) *httptest.Server {
	t.Helper()
	l := must.Get(net.Listen("tcp", net.JoinHostPort(ip, "0")))(t)
	s := httptest.NewUnstartedServer(h)
	_ = s.Listener.Close() // httptest's default, on 127.0.0.1
	if len(names) == 0 {
		names = []string{ip}
	}
	s.Listener, s.EnableHTTP2, s.Config.ErrorLog = l, true, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pki.Leaf{Names: names}).TLS()}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}
