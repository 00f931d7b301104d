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

	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/relay"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

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
	must.Do(t, d.Stop()) // no connection is being made
	if n := server.Accepted(); n != tunnels.Load() {
		t.Errorf("the server accepted %d connections, the proxy opened %d", n, tunnels.Load())
	}
}
