//go:build e2e

// Package alone is a Fairlead over a directory of manifests, without any cluster, with keys of its
// own. Every helper ends the test when it cannot do what it is for.
package alone

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Keys are keys that no cluster has made.
type Keys struct {
	// Clients vouches for users, Fronts for the proxy client certificate, Servers for the front
	// door and the extension servers.
	Clients, Fronts, Servers *pki.CA
}

// NewKeys makes them.
func NewKeys() Keys {
	return Keys{Clients: pki.NewCA("clients"), Fronts: pki.NewCA("fronts"), Servers: pki.NewCA("servers")}
}

// Pair writes a key pair to files.
func Pair(t *testing.T, ca *pki.CA, leaf pki.Leaf) cluster.Pair {
	t.Helper()
	cert, key, err := ca.Issue(leaf).WriteFiles(t.TempDir(), "pair")
	must.Do(t, err)
	return cluster.Pair{CertFile: cert, KeyFile: key}
}

// Bundle writes a CA to a file.
func Bundle(t *testing.T, ca *pki.CA) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	must.Do(t, os.WriteFile(file, ca.PEM(), 0o600))
	return file
}

// Ports are free ones of 127.0.0.1.
func Ports(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		l := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it is one
	}
	return ports
}

// Door is one Fairlead.
type Door struct {
	// Front and Admin are host:port.
	Front, Admin string
	// Log is what it has written.
	Log *logbook.Book
	// Process is it.
	Process *os.Process
	// Stop ends it as systemd would, and returns how it ended.
	Stop func() error
}

// Serve runs a program as fairlead serve until the test ends: fairlead itself, or one that becomes
// it. It waits for nothing.
func (k *Keys) Serve(t *testing.T, program, registry string, args ...string) *Door {
	t.Helper()
	ports := Ports(t, 2)
	serving := Pair(t, k.Servers, pki.Leaf{CommonName: "fairlead", Names: []string{"127.0.0.1", "localhost"}})
	proxy := Pair(t, k.Fronts, pki.Leaf{CommonName: "front-proxy-client"})
	cmd := exec.Command(program, append([]string{
		"serve", "--registry=dir:" + registry, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]), fmt.Sprintf("--admin-secure-port=%d", ports[1]),
		"--tls-cert-file=" + serving.CertFile, "--tls-private-key-file=" + serving.KeyFile, "--client-ca-file=" + Bundle(t, k.Clients),
		"--proxy-client-cert-file=" + proxy.CertFile, "--proxy-client-key-file=" + proxy.KeyFile,
	}, args...)...)
	d := &Door{Front: fmt.Sprintf("127.0.0.1:%d", ports[0]), Admin: fmt.Sprintf("127.0.0.1:%d", ports[1]), Log: &logbook.Book{}}
	cmd.Stdout, cmd.Stderr = d.Log, d.Log
	must.Do(t, cmd.Start())
	d.Process = cmd.Process
	d.Stop = sync.OnceValue(func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended already, which Wait tells
		late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		return cmd.Wait()
	})
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Errorf("fairlead ended: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", d.Log)
		}
	})
	return d
}

// Get asks, and returns what was answered, status 0 when nothing was.
func Get(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	reply, err := ask.Do(t.Context(), c, http.MethodGet, url, nil, "")
	if err != nil {
		return 0, err.Error()
	}
	return reply.Code, reply.Body
}
