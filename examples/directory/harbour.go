package main

import (
	"context"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/examples/directory/tides"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// The manifests that do not depend on ports and keys. All others are written next to them.
//
//go:embed registry
var manifests embed.FS

// harbour is everything except Fairlead itself.
type harbour struct {
	options
	clients, fronts, servers *pki.CA // of users, of the front proxy (Fairlead), and of all servers
	tides                    *http.Server
	widgets                  *extension.Server
	front                    cluster.Endpoint
	admin, sailor            cluster.Credentials
}

// build makes keys, starts the extension servers and writes the registry.
func build(ctx context.Context, o options, stderr io.Writer) (*harbour, error) {
	for _, port := range []*int{&o.port, &o.adminPort} {
		if err := reserve(ctx, port, stderr); err != nil {
			return nil, err
		}
	}
	h := &harbour{
		options: o, clients: pki.NewCA("users"), fronts: pki.NewCA("front-proxies"), servers: pki.NewCA("servers"),
		front: cluster.Endpoint{
			URL: fmt.Sprintf("https://127.0.0.1:%d", o.port), CAFile: filepath.Join(o.dir, "pki", "servers.crt"),
		},
	}
	for _, dir := range []string{"pki", "registry"} {
		if err := os.MkdirAll(h.file(dir), 0o700); err != nil {
			return nil, err
		}
	}
	if err := h.startServers(ctx); err != nil {
		h.close()
		return nil, err
	}
	if err := errors.Join(h.writeRegistry(), h.writeUsers()); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// reserve replaces a port that is in use, or 0, by a free one.
func reserve(ctx context.Context, port *int, stderr io.Writer) error {
	if *port != 0 {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", *port))
		if err == nil {
			return l.Close()
		}
		_, _ = fmt.Fprintf(stderr, "example: port %d is in use, so Fairlead gets a free one\n", *port)
	}
	free, err := cluster.Config{Loopback: "127.0.0.1"}.FreePorts(1)
	if err != nil {
		return fmt.Errorf("choosing a port: %w", err)
	}
	*port = free[0]
	return nil
}

// startServers starts a hand-written extension server and the one that the tests use. Both accept
// only Fairlead's client certificate.
func (h *harbour) startServers(ctx context.Context) error {
	h.tides = tides.New(tides.Config{
		Certificate:  h.servers.Issue(pki.Leaf{CommonName: "tides", Names: []string{"tides.harbour.svc"}}).TLS(),
		FrontProxies: h.fronts.Pool(),
	})
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	h.tides.Addr = l.Addr().String()
	go func() { _ = h.tides.ServeTLS(l, "", "") }()  // ends with close
	h.widgets, err = extension.New(extension.Config{ //nolint:contextcheck // close ends it
		GroupVersions: []string{"widgets.example.com/v1"}, Objects: 3,
		CA: h.servers, Names: []string{"widgets.harbour.svc"},
		RequestHeaderCA: h.fronts.Pool(), RejectWith: http.StatusUnauthorized,
	})
	return err
}

func (h *harbour) close() {
	if h.tides != nil {
		_ = h.tides.Close()
	}
	if h.widgets != nil {
		h.widgets.Close()
	}
}

// writeRegistry writes the manifests, and what only this run knows: the extension servers' CA and
// addresses.
func (h *harbour) writeRegistry() error {
	files, err := fs.Sub(manifests, "registry")
	if err != nil {
		return err
	}
	err = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		return h.writeManifest(name, string(data))
	})
	if err != nil {
		return err
	}
	ca := strings.ReplaceAll(strings.TrimSpace(string(h.servers.PEM())), "\n", "\n    ")
	trust := "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: harbour, name: serving}\n" +
		"data:\n  ca.crt: |\n    " + ca + "\n"
	if err := h.writeManifest("trust.yaml", trust); err != nil {
		return err
	}
	both := endpoints("tides", h.tides.Addr) + "---\n" + endpoints("widgets", h.widgets.Addr())
	return h.writeManifest("endpoints.yaml", both)
}

func endpoints(service, address string) string {
	host, port, _ := strings.Cut(address, ":")
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: harbour, name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{port: %[3]s}]
endpoints: [{addresses: [%[2]s]}]
`, service, host, port)
}

// writeManifest renames a complete file into place, so that Fairlead never reads half of one.
func (h *harbour) writeManifest(name, text string) error {
	temporary := h.file(filepath.Join("registry", "."+name))
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, h.file(filepath.Join("registry", name)))
}

// writeUsers writes a kubeconfig for an administrator and one for a sailor with the role of
// registry/roles.yaml.
func (h *harbour) writeUsers() error {
	if err := os.WriteFile(h.front.CAFile, h.servers.PEM(), 0o600); err != nil {
		return err
	}
	for name, u := range map[string]struct {
		group string
		cred  *cluster.Credentials
	}{"admin": {"system:masters", &h.admin}, "sailor": {"crew", &h.sailor}} {
		var err error
		leaf := pki.Leaf{CommonName: name, Organizations: []string{u.group}}
		if u.cred.Pair, err = h.pair(h.clients, name, leaf); err != nil {
			return err
		}
	}
	return errors.Join(
		h.front.WriteKubeconfig(h.file("kubeconfig"), h.admin),
		h.front.WriteKubeconfig(h.file("kubeconfig-sailor"), h.sailor))
}

// pair writes a key pair to files.
func (h *harbour) pair(ca *pki.CA, name string, leaf pki.Leaf) (cluster.Pair, error) {
	cert, key, err := ca.Issue(leaf).WriteFiles(h.file("pki"), name)
	return cluster.Pair{CertFile: cert, KeyFile: key}, err
}

// fairleadArgs returns what the example demonstrates: the flags of a Fairlead in front of a folder.
func (h *harbour) fairleadArgs() ([]string, error) {
	names := []string{"127.0.0.1", "localhost"}
	serving, err1 := h.pair(h.servers, "fairlead", pki.Leaf{CommonName: "fairlead", Names: names})
	client, err2 := h.pair(h.fronts, "front-proxy-client", pki.Leaf{CommonName: "front-proxy-client"})
	clients := h.file(filepath.Join("pki", "users.crt"))
	if err := errors.Join(err1, err2, os.WriteFile(clients, h.clients.PEM(), 0o600)); err != nil {
		return nil, err
	}
	return []string{
		"serve", "--registry=dir:" + h.file("registry"), "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", h.port), fmt.Sprintf("--admin-secure-port=%d", h.adminPort),
		"--tls-cert-file=" + serving.CertFile, "--tls-private-key-file=" + serving.KeyFile,
		"--client-ca-file=" + clients,
		"--proxy-client-cert-file=" + client.CertFile, "--proxy-client-key-file=" + client.KeyFile,
	}, nil
}

// waitReady waits until both extension servers answer through Fairlead.
func (h *harbour) waitReady(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // it takes a second or two, and more on slow cores
	defer cancel()
	pair, err := tls.LoadX509KeyPair(h.admin.Pair.CertFile, h.admin.Pair.KeyFile)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{
			RootCAs: h.servers.Pool(), Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		},
		ForceAttemptHTTP2: true,
	}}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := h.front.Probed(h.admin, "v1.tides.example.com", "v1.widgets.example.com")(ctx)
		if err == nil { // earlier requests would be failures, which kubectl fairlead status shows for a minute
			err = errors.Join(
				get(ctx, client, h.front.URL+"/apis/tides.example.com/v1/tides"),
				get(ctx, client, h.front.URL+"/apis/widgets.example.com/v1/widgets"))
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-p.done:
			return p.cause()
		case <-tick.C:
		}
	}
}

func get(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("getting %s: %s", url, res.Status)
	}
	return nil
}

// describe prints what to try.
func (h *harbour) describe(w io.Writer) error {
	_, err := fmt.Fprintf(w, `
Fairlead stands before two extension servers. There is no cluster.

  front door   %s
  registry     %s   (edit it, and see what changes)
  kubeconfig   %s   (%[3]s-sailor: a user who may only read)
  log          %s

Try:

  export KUBECONFIG="%[3]s" PATH="%[5]s:$PATH"
  kubectl get apiservices
  kubectl fairlead status
  kubectl api-resources
  kubectl get tides
  kubectl explain tides.status
  kubectl get widgets -A
  kubectl delete widget widget-000
  kubectl --kubeconfig "%[3]s-sailor" get tide dover -o yaml
  kubectl --kubeconfig "%[3]s-sailor" delete widget widget-001   # forbidden

Ctrl-C ends everything.
`, h.front.URL, h.file("registry"), h.file("kubeconfig"), h.file("fairlead.log"), filepath.Dir(h.fairlead))
	return err
}
