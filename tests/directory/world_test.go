//go:build e2e

package directory

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// world is what all cases share: the executables, and keys that do not come from a cluster.
type world struct {
	bin, kubectl string
	dir          string
	keys         alone.Keys
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	return &world{bin: suite.Build(t, dir), kubectl: suite.Tool(t, "kubectl"), dir: dir, keys: alone.NewKeys()}
}

// user issues a client certificate.
func (w *world) user(t *testing.T, name string, groups ...string) cluster.Credentials {
	t.Helper()
	return cluster.Credentials{Pair: alone.Pair(t, w.keys.Clients, pki.Leaf{CommonName: name, Organizations: groups})}
}

// extension starts an extension server that trusts only the world's front proxies.
func (w *world) extension(t *testing.T, groupVersions ...string) *extension.Server {
	t.Helper()
	return extension.Start(t, extension.Config{
		GroupVersions: groupVersions, CA: w.keys.Servers, Names: []string{"one.apps.svc", "two.apps.svc"}, Objects: 3,
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

// client returns an HTTP/2 client with the credentials cr.
func (w *world) client(t *testing.T, cr cluster.Credentials) *http.Client {
	t.Helper()
	return suite.Client(t, cluster.Endpoint{CAFile: alone.Bundle(t, w.keys.Servers)}, cr)
}

// ask gets a path from Fairlead.
func (d *door) ask(t *testing.T, c *http.Client, path string) (int, string) {
	t.Helper()
	return alone.Get(t, c, d.front.URL+path)
}

// status sends a GET and compares the status.
func (d *door) status(t *testing.T, c *http.Client, path string, want int) {
	t.Helper()
	if got, body := d.ask(t, c, path); got != want {
		t.Errorf("GET %s: %d, want %d: %s", path, got, want, body)
	}
}

// becomes waits for a status.
func (d *door) becomes(t *testing.T, c *http.Client, path string, want int) {
	t.Helper()
	suite.Eventually(t, 30*time.Second, http.StatusText(want), func() (bool, string) {
		got, body := d.ask(t, c, path)
		return got == want, body
	})
}

const widgets = "/apis/widgets.example.com/v1/widgets"

// api returns the manifests of a group-version whose extension server has the address.
func api(group, version, service, address, ca string) string {
	host, port, _ := strings.Cut(address, ":")
	return fmt.Sprintf(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: %[2]s.%[1]s
spec:
  group: %[1]s
  version: %[2]s
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: %[6]s
  service:
    namespace: apps
    name: %[3]s
---
apiVersion: v1
kind: Service
metadata: {namespace: apps, name: %[3]s}
spec: {ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: apps, name: %[3]s-1, labels: {kubernetes.io/service-name: %[3]s}}
addressType: IPv4
ports: [{port: %[5]s}]
endpoints: [{addresses: [%[4]s]}]
`, group, version, service, host, port, ca)
}

// apiOf returns the manifests of a group-version of s.
func apiOf(s *extension.Server, group, version, service string) string {
	return api(group, version, service, s.Addr(), base64.StdEncoding.EncodeToString(s.CA.PEM()))
}
