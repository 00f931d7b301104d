//go:build e2e

package hostile

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// world is what all cases share: the executable, and keys.
type world struct {
	bin     string
	clients *pki.CA // vouches for users
	fronts  *pki.CA // vouches for the proxy client certificate
	servers *pki.CA // vouches for the front door and the extension servers
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{bin: cmp.Or(*otherBuild, filepath.Join(t.TempDir(), "fairlead")), clients: pki.NewCA("clients"), fronts: pki.NewCA("fronts"), servers: pki.NewCA("servers")}
	if *otherBuild != "" {
		return w
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", w.bin, "../../cmd/fairlead").CombinedOutput(); err != nil {
		t.Fatalf("building fairlead: %v\n%s", err, out)
	}
	return w
}

// as is how a user of these groups connects; without a name, how nobody does.
func (w *world) as(name string, groups ...string) *tls.Config {
	c := &tls.Config{RootCAs: w.servers.Pool(), MinVersion: tls.VersionTLS12}
	if name != "" {
		c.Certificates = []tls.Certificate{w.clients.Issue(pki.Leaf{CommonName: name, Organizations: groups}).TLS()}
	}
	return c
}

// client has one connection and speaks the given protocol only.
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
		GroupVersions: []string{groupVersion}, CA: w.servers, Names: []string{svc + ".apps.svc"}, RequestHeaderCA: w.fronts.Pool(), RejectWith: http.StatusUnauthorized, Record: record,
		MaxStreams: 1000,
	})
}

// manifest registers what listens on an address as the service svc.
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
`, group, svc, host, port, base64.StdEncoding.EncodeToString(w.servers.PEM()), annotations)
}

// put writes a file of a registry as deployers do: whole or not at all.
func put(t *testing.T, dir, name, text string) {
	t.Helper()
	temporary := filepath.Join(dir, "."+name+".tmp")
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// files writes a key pair and returns its flags.
func files(t *testing.T, p *pki.Pair, certFlag, keyFlag string) []string {
	t.Helper()
	cert, key, err := p.WriteFiles(t.TempDir(), "pair")
	if err != nil {
		t.Fatal(err)
	}
	return []string{certFlag + "=" + cert, keyFlag + "=" + key}
}

func writePEM(t *testing.T, ca *pki.CA) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, ca.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func freePorts(t *testing.T, n int) []string {
	t.Helper()
	var ports []string
	for range n {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := strings.Cut(l.Addr().String(), ":")
		ports = append(ports, port)
	}
	return ports
}

// eventually asks every few milliseconds until ok says yes, and fails after most.
func eventually(t *testing.T, most time.Duration, what string, ok func() (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		done, last := ok()
		if done {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("after %s still not %s: %s", most, what, last)
		case <-tick.C:
		}
	}
}

// pause lets time pass.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal("the test has ended")
	}
}
