//go:build e2e

// Package alone runs Fairlead with a directory of manifests as its registry: no cluster, and keys
// of its own. Helpers end the test on failure.
package alone

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Keys are certificate authorities that do not come from a cluster.
type Keys struct {
	// Clients signs users' certificates, Fronts the proxy client certificate, and Servers those of
	// Fairlead and the extension servers.
	Clients, Fronts, Servers *pki.CA
}

// NewKeys makes the CAs.
func NewKeys() Keys {
	return Keys{Clients: pki.NewCA("clients"), Fronts: pki.NewCA("fronts"), Servers: pki.NewCA("servers")}
}

// Pair issues a key pair and writes it to files.
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

// Ports returns free ports of 127.0.0.1.
func Ports(t *testing.T, n int) []int {
	t.Helper()
	return must.Get(cluster.Config{Loopback: "127.0.0.1"}.FreePorts(n))(t)
}

// Door is a running Fairlead.
type Door struct {
	Front, Admin string        // host:port
	Log          *logbook.Book // its output
	Process      *os.Process   // the running program
	Stop         func() error  // sends SIGTERM, as systemd does, and returns the result of Wait
}

// Serve runs a program with the arguments of fairlead serve until the test ends: fairlead itself,
// or a program that executes it. It does not wait until Fairlead is ready.
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
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have exited already, which Wait reports
		late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		return cmd.Wait()
	})
	t.Cleanup(func() {
		check.Fault(t, "", d.Stop(), "fairlead's end")
		if t.Failed() {
			t.Logf("log:\n%s", d.Log)
		}
	})
	return d
}

// Get sends a GET and returns status and body. Without an answer, these are 0 and the error.
func Get(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	reply, err := ask.Do(t.Context(), c, http.MethodGet, url, nil, "")
	if err != nil {
		return 0, err.Error()
	}
	return reply.Code, reply.Body
}
