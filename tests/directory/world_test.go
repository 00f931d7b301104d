//go:build e2e

package directory

import (
	"fmt"
	"net/http"
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
	w        *world
	registry string // the directory
	front    cluster.Endpoint
	admin    cluster.Endpoint
	root     *http.Client // of a user in system:masters
}

// open starts a Fairlead with a directory as its registry and waits until it is ready.
func (w *world) open(t *testing.T, registry string, args ...string) *door {
	t.Helper()
	d := w.start(t, registry, args...)
	suite.Eventually(t, time.Minute, "ready", func() (bool, string) {
		status, body := alone.Get(t, d.root, d.admin.URL+"/readyz")
		return status == http.StatusOK, fmt.Sprintf("%d %s\n%s", status, body, d.Log)
	})
	return d
}

// start is open without waiting.
func (w *world) start(t *testing.T, registry string, args ...string) *door {
	t.Helper()
	d := &door{w: w, registry: registry, Door: w.keys.Serve(t, w.bin, registry, append([]string{"--logging-format=json"}, args...)...), root: w.client(t, w.user(t, "root", "system:masters"))}
	ca := alone.Bundle(t, w.keys.Servers)
	d.front, d.admin = cluster.Endpoint{URL: "https://" + d.Front, CAFile: ca}, cluster.Endpoint{URL: "https://" + d.Admin, CAFile: ca}
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
