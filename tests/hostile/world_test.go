//go:build e2e

package hostile

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// world is what all cases share: the executable and keys.
type world struct {
	bin  string
	keys alone.Keys
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{bin: *otherBuild, keys: alone.NewKeys()}
	if w.bin == "" {
		w.bin = suite.Build(t, t.TempDir())
	}
	return w
}

// as returns the TLS configuration of a user in groups, or of a stranger if name is empty.
func (w *world) as(name string, groups ...string) *tls.Config {
	c := &tls.Config{RootCAs: w.keys.Servers.Pool(), MinVersion: tls.VersionTLS12}
	if name != "" {
		c.Certificates = []tls.Certificate{w.keys.Clients.Issue(pki.Leaf{CommonName: name, Organizations: groups}).TLS()}
	}
	return c
}

// client has one connection and speaks only the given protocol.
func client(c *tls.Config, proto string) *http.Client {
	c = c.Clone()
	c.NextProtos = []string{proto}
	rt := &http.Transport{TLSClientConfig: c, DisableCompression: true, MaxConnsPerHost: 1, Protocols: new(http.Protocols)}
	rt.Protocols.SetHTTP2(proto == "h2")
	rt.Protocols.SetHTTP1(proto != "h2")
	return &http.Client{Transport: rt, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// extension starts an extension server for svc.apps.svc that serves one group-version.
func (w *world) extension(t *testing.T, svc, groupVersion string, record int) *extension.Server {
	t.Helper()
	return extension.Start(t, extension.Config{
		GroupVersions: []string{groupVersion}, CA: w.keys.Servers, Names: []string{svc + ".apps.svc"}, RequestHeaderCA: w.keys.Fronts.Pool(), RejectWith: http.StatusUnauthorized, Record: record,
		MaxStreams: 1000,
	})
}

// manifest registers the server at an address as the service svc.
func (w *world) manifest(svc, group, address, annotations string) string {
	host, port, _ := net.SplitHostPort(address)
	return fmt.Sprintf(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.%[1]s, annotations: {%[6]s}}
spec: {group: %[1]s, version: v1, groupPriorityMinimum: 100, versionPriority: 100, caBundle: %[5]s, service: {namespace: apps, name: %[2]s}}
---
apiVersion: v1
kind: Service
metadata: {namespace: apps, name: %[2]s}
spec: {ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: apps, name: %[2]s-1, labels: {kubernetes.io/service-name: %[2]s}}
addressType: IPv4
ports: [{port: %[4]s}]
endpoints: [{addresses: [%[3]s]}]
`, group, svc, host, port, base64.StdEncoding.EncodeToString(w.keys.Servers.PEM()), annotations)
}
