//go:build e2e

package directory

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// world is what all cases share: the executables, and keys that no cluster has made.
type world struct {
	bin, kubectl string
	dir          string
	clients      *pki.CA // vouches for users
	fronts       *pki.CA // vouches for the proxy client certificate
	servers      *pki.CA // vouches for the front door and the extension servers
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{bin: suite.Build(t, dir), kubectl: suite.Tool(t, "kubectl"), dir: dir, clients: pki.NewCA("clients"), fronts: pki.NewCA("fronts"), servers: pki.NewCA("servers")}
	return w
}

// pair writes a key pair to files.
func (w *world) pair(t *testing.T, ca *pki.CA, name string, leaf pki.Leaf) cluster.Pair {
	t.Helper()
	cert, key, err := ca.Issue(leaf).WriteFiles(t.TempDir(), name)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Pair{CertFile: cert, KeyFile: key}
}

// user is a client certificate.
func (w *world) user(t *testing.T, name string, groups ...string) cluster.Credentials {
	t.Helper()
	return cluster.Credentials{Pair: w.pair(t, w.clients, name, pki.Leaf{CommonName: name, Organizations: groups})}
}

// extension starts an extension server that believes the world's front proxies and nobody else.
func (w *world) extension(t *testing.T, groupVersions ...string) *extension.Server {
	t.Helper()
	return extension.Start(t, extension.Config{
		GroupVersions: groupVersions, CA: w.servers, Names: []string{"one.apps.svc", "two.apps.svc"}, Objects: 3,
		RequestHeaderCA: w.fronts.Pool(), RejectWith: http.StatusUnauthorized,
	})
}

// door is one Fairlead and its registry.
type door struct {
	w        *world
	registry string // the directory
	front    cluster.Endpoint
	admin    cluster.Endpoint
	log      *logbook
	root     *http.Client // of system:masters
	stop     func() error // ends it as systemd would, and returns how it ended
}

// open starts a Fairlead over a directory and waits until it is ready.
func (w *world) open(t *testing.T, registry string, args ...string) *door {
	t.Helper()
	d := w.start(t, registry, args...)
	suite.Eventually(t, time.Minute, "ready", func() (bool, string) {
		status, body := d.get(t, d.root, d.admin.URL+"/readyz")
		return status == http.StatusOK, fmt.Sprintf("%d %s\n%s", status, body, d.log)
	})
	return d
}

// start is open without the wait.
func (w *world) start(t *testing.T, registry string, args ...string) *door {
	t.Helper()
	ports := freePorts(t, 2)
	dir := t.TempDir()
	ca := writePEM(t, dir, "servers", w.servers)
	serving := w.pair(t, w.servers, "serving", pki.Leaf{CommonName: "fairlead", Names: []string{"127.0.0.1", "localhost"}})
	proxy := w.pair(t, w.fronts, "proxy", pki.Leaf{CommonName: "front-proxy-client"})
	all := append([]string{
		"serve", "--registry=dir:" + registry, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]), fmt.Sprintf("--admin-secure-port=%d", ports[1]),
		"--tls-cert-file=" + serving.CertFile, "--tls-private-key-file=" + serving.KeyFile, "--client-ca-file=" + writePEM(t, dir, "clients", w.clients),
		"--proxy-client-cert-file=" + proxy.CertFile, "--proxy-client-key-file=" + proxy.KeyFile, "--logging-format=json",
	}, args...)
	d := &door{
		w: w, registry: registry, log: &logbook{},
		front: cluster.Endpoint{URL: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), CAFile: ca},
		admin: cluster.Endpoint{URL: fmt.Sprintf("https://127.0.0.1:%d", ports[1]), CAFile: ca},
	}
	d.root = w.client(t, w.user(t, "root", "system:masters"))
	cmd := exec.Command(w.bin, all...)
	cmd.Stdout, cmd.Stderr = d.log, d.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.stop = sync.OnceValue(func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended already, which Wait tells
		late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		return cmd.Wait()
	})
	t.Cleanup(func() {
		if err := d.stop(); err != nil {
			t.Errorf("fairlead ended: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", d.log)
		}
	})
	return d
}

func writePEM(t *testing.T, dir, name string, ca *pki.CA) string {
	t.Helper()
	file := filepath.Join(dir, name+".pem")
	if err := os.WriteFile(file, ca.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port) //nolint:forcetypeassert // it is one
	}
	return ports
}

// client is an HTTP/2 client as the user of cr.
func (w *world) client(t *testing.T, cr cluster.Credentials) *http.Client {
	t.Helper()
	return suite.Client(t, cluster.Endpoint{CAFile: writePEM(t, t.TempDir(), "servers", w.servers)}, cr)
}

// get returns what was answered, status 0 when nothing was.
func (d *door) get(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

// ask is get of a path of the front door.
func (d *door) ask(t *testing.T, c *http.Client, path string) (int, string) {
	t.Helper()
	return d.get(t, c, d.front.URL+path)
}
