//go:build e2e

package directory

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/relay"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// world is what all cases share: the executable, and keys that do not come from a cluster.
type world struct {
	bin  string
	keys alone.Keys
}

func (w *world) user(t *testing.T, name string, groups ...string) cluster.Credentials {
	t.Helper()
	return cluster.Credentials{Pair: alone.Pair(t, w.keys.Clients, pki.Leaf{CommonName: name, Organizations: groups})}
}

// extension starts an extension server that trusts only the world's front proxies.
func (w *world) extension(t *testing.T, groupVersions ...string) *extension.Server {
	t.Helper()
	return extension.Start(t, extension.Config{
		GroupVersions: groupVersions, CA: w.keys.Servers, Objects: 3,
		Names:           []string{"widgets-example-com.x.svc", "gadgets-example-com.x.svc", "sea-example-com.x.svc", "apps.x.svc", "one.apps.svc"},
		RequestHeaderCA: w.keys.Fronts.Pool(), RejectWith: http.StatusUnauthorized,
	})
}

// door is a Fairlead with its registry.
type door struct {
	*alone.Door
	front cluster.Endpoint
	root  *http.Client // of a user in system:masters
}

// open starts a Fairlead with a directory as its registry and waits until it is ready.
func (w *world) open(t *testing.T, registry string, args ...string) *door {
	t.Helper()
	d := &door{Door: w.keys.Serve(t, w.bin, registry, append([]string{"--logging-format=json"}, args...)...), root: w.client(t, w.user(t, "root", "system:masters"))}
	d.front = cluster.Endpoint{URL: "https://" + d.Front, CAFile: alone.Bundle(t, w.keys.Servers)}
	suite.Eventually(t, time.Minute, "ready", func() (bool, string) {
		status, body := alone.Get(t, d.root, "https://"+d.Admin+"/readyz")
		return status == http.StatusOK, fmt.Sprintf("%d %s\n%s", status, body, d.Log)
	})
	return d
}

func (w *world) client(t *testing.T, cr cluster.Credentials) *http.Client {
	t.Helper()
	return suite.Client(t, cluster.Endpoint{CAFile: alone.Bundle(t, w.keys.Servers)}, cr)
}

func (d *door) ask(t *testing.T, c *http.Client, path string) (int, string) {
	t.Helper()
	return alone.Get(t, c, d.front.URL+path)
}

func (d *door) status(t *testing.T, c *http.Client, path string, want int) {
	t.Helper()
	got, body := d.ask(t, c, path)
	check.Same(t, want, got, "GET %s: %s", path, body)
}

func (d *door) becomes(t *testing.T, c *http.Client, path string, want int) {
	t.Helper()
	suite.Eventually(t, time.Minute, http.StatusText(want), func() (bool, string) {
		got, body := d.ask(t, c, path)
		return got == want, body
	})
}

const widgets = "/apis/widgets.example.com/v1/widgets"

// put registers a group/v1 of s.
func put(t *testing.T, registry string, s *extension.Server, group, annotations string) {
	t.Helper()
	suite.Put(t, filepath.Join(registry, group+".yaml"), manifests.At(group, "v1", s.Addr(), s.CA.PEM(), annotations))
}

func TestDirectory(t *testing.T) {
	w := &world{bin: suite.Build(t, t.TempDir()), keys: alone.NewKeys()}
	t.Run("speed", func(t *testing.T) { testSpeed(t, w) }) // it measures, so the others start when it has ended
	suite.Cases[*world]{
		{"kubectl", testKubectl},
		{"identity", testIdentity},
		{"mode", testMode},
		{"egress", testEgress},
		{"local", testLocal},
		{"claimed", testClaimed},
		{"example", testExample},
	}.Beside(t, w)
}

// testEgress has an endpoint that can be reached only through a proxy, as if a hosted control plane
// had no route to its nodes. Probes, documents and requests go through it.
func testEgress(t *testing.T, w *world) {
	registry, dir := t.TempDir(), t.TempDir()
	const beyond = "192.0.2.1:8443" // TEST-NET-1
	server := w.extension(t, "widgets.example.com/v1")
	var tunnels atomic.Int64
	proxy := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		s, err := new(net.Dialer).DialContext(r.Context(), "tcp", server.Addr())
		if err != nil || r.Method != http.MethodConnect || r.Host != beyond {
			rw.WriteHeader(http.StatusBadGateway)
			return
		}
		tunnels.Add(1)
		if c, buffered, err := http.NewResponseController(rw).Hijack(); err == nil {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n\r\n")
			relay.Join(context.WithoutCancel(r.Context()), c, s, buffered)
		}
	}))
	proxy.TLS = &tls.Config{
		Certificates: []tls.Certificate{w.keys.Servers.Issue(pki.Leaf{Names: []string{"127.0.0.1"}}).TLS()},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: w.keys.Clients.Pool(), MinVersion: tls.VersionTLS12,
	}
	proxy.StartTLS()
	t.Cleanup(proxy.Close)
	client, file := alone.Pair(t, w.keys.Clients, pki.Leaf{CommonName: "fairlead"}), filepath.Join(dir, "egress.yaml")
	suite.Put(t, file, fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport: {tcp: {url: "%s", tlsConfig: {caBundle: %s, clientCert: %s, clientKey: %s}}}
`, proxy.URL, alone.Bundle(t, w.keys.Servers), client.CertFile, client.KeyFile))
	suite.Put(t, filepath.Join(registry, "widgets.yaml"), manifests.At("widgets.example.com", "v1", beyond, server.CA.PEM(), ""))
	d := w.open(t, registry, "--egress-selector-config-file="+file)
	d.becomes(t, d.root, widgets, http.StatusOK)
	must.Do(t, d.Stop()) // no connection is being made, but the server may accept the last one later
	suite.Eventually(t, time.Minute, "it has accepted what the proxy opened", func() (bool, string) {
		return server.Accepted() == tunnels.Load(), fmt.Sprint(server.Accepted(), " of ", tunnels.Load())
	})
}
