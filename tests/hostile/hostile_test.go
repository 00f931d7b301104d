//go:build e2e

package hostile

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// No bytes that a caller sends to a port cost other callers more than a documented amount.
func TestProtocol(t *testing.T) {
	w := newWorld(t)
	t.Run("h2spec", func(t *testing.T) { testConformance(t, w.open(t, "--anonymous-auth")) })
	t.Run("frame", func(t *testing.T) {
		suite.Cases[*door]{
			{Name: "smuggling", Run: testSmuggling},
			{Name: "backends", Run: testBackends},
			{Name: "floods", Run: testFloods},
			{Name: "slow peers", Run: testSlow},
		}.Run(t, w.open(t))
	})
}

// testConformance runs h2spec without credentials against what Fairlead answers itself, on both ports, and forwards.
func testConformance(t *testing.T, d *door) {
	h2spec := suite.Tool(t, "h2spec")
	for name, at := range map[string][2]string{"front": {d.Front, "/readyz"}, "forwarded": {d.Front, others + "/widget-001"}, "admin": {d.Admin, "/readyz"}} {
		t.Run(name, func(t *testing.T) {
			host, port, err := net.SplitHostPort(at[0])
			must.Do(t, err)
			out, err := exec.CommandContext(t.Context(), h2spec, "--host", host, "--port", port, "--tls", "--insecure", "--timeout", "5", "--path", at[1]).CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			t.Log(lines[len(lines)-1])
			check.Same(t, true, err == nil && strings.Contains(string(out), " 0 failed"), "%v\n%s", err, out)
		})
	}
}

// world is what all cases share: the executable and keys.
type world struct {
	bin  string
	keys alone.Keys
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{bin: suite.Build(t, t.TempDir()), keys: alone.NewKeys()}
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
	rt := &http.Transport{TLSClientConfig: c, DisableCompression: true, MaxConnsPerHost: 1, Protocols: ask.Only(proto == "h2")}
	return &http.Client{Transport: rt, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// extension starts an extension server that serves one group-version.
func (w *world) extension(t *testing.T, svc string, record int) *extension.Server {
	t.Helper()
	return extension.Start(t, extension.Config{
		GroupVersions: []string{svc + ".example.com/v1"}, CA: w.keys.Servers, Names: []string{svc + "-example-com.x.svc"}, RequestHeaderCA: w.keys.Fronts.Pool(), RejectWith: http.StatusUnauthorized,
		Record: record, MaxStreams: 1000,
	})
}

func (d *door) register(t *testing.T, svc string, s *extension.Server, annotations string) {
	t.Helper()
	suite.Put(t, filepath.Join(d.registry, svc+".yaml"), manifests.At(svc+".example.com", "v1", s.Addr(), s.CA.PEM(), annotations))
}

func widgets(svc string) string { return "/apis/" + svc + ".example.com/v1/namespaces/default/widgets" }

// The APIs of a door: innocent users request others, attacks target.
var others, target = widgets("others"), widgets("target")

// othersTake is how long the innocents' backend takes, like a real one. Without it the machine's
// scheduler would dominate their latency.
const othersTake = 10 * time.Millisecond

// door is one Fairlead over a directory, with one extension server for innocent users and one that
// is attacked through it, or attacks.
type door struct {
	*alone.Door
	w        *world
	registry string
	target   *extension.Server
	root     *http.Client // in system:masters
}

// open starts a door where every authenticated user may do everything, and waits until it serves.
func (w *world) open(t *testing.T, more ...string) *door {
	t.Helper()
	d := &door{w: w, registry: t.TempDir(), target: w.extension(t, "target", 0)}
	innocent := w.extension(t, "others", -1)
	d.register(t, "others", innocent, "")
	d.register(t, "target", d.target, "")
	must.Do(t, innocent.Set(extension.Fault{Kind: extension.Slow, Delay: othersTake, Path: others}))
	d.Door = w.keys.Serve(t, w.bin, d.registry, append(more, "--authorization-mode=AlwaysAllow", `--cors-allowed-origins=//127\.0\.0\.1(:|$)`)...)
	d.root = client(w.as("root", "system:masters"), "h2")
	t.Cleanup(d.root.CloseIdleConnections)
	for _, path := range []string{others, target} {
		d.serves(t, path)
	}
	return d
}

func (d *door) serves(t *testing.T, path string) {
	t.Helper()
	suite.Eventually(t, time.Minute, "serving "+path, func() (bool, string) {
		status, body := alone.Get(t, d.root, "https://"+d.Front+path+"?limit=1")
		return status == http.StatusOK, fmt.Sprintf("%d %s\n%s", status, body, d.Log)
	})
}

func (d *door) innocents() *innocents {
	return &innocents{d.Process.Pid, client(d.w.as("innocent"), "h2"), "https://" + d.Front + others + "/widget-001"}
}

// harbour is a real cluster with a Fairlead and an extension server that records its requests.
type harbour struct {
	*cluster.Cluster
	front  *cluster.Front
	remote *extension.Server
	outer  *pki.CA // signs the certificates of front proxies in front of Fairlead

	kubectl kubectl.User // of an administrator, past Fairlead
}

const remotePath = "/apis/mirror.example.com/v1/namespaces/default/widgets"

// newHarbour starts one, whose users may use the mirror. If it impersonates, kube-apiserver trusts no front proxy.
func newHarbour(t *testing.T, w *world, impersonates bool) *harbour {
	t.Helper()
	cfg := cluster.Config{UIDHeaders: true}
	if impersonates {
		cfg.APIServerArgs = []string{"--requestheader-client-ca-file="}
	}
	c := suite.Start(t, cfg)
	h := &harbour{Cluster: c, outer: pki.NewCA("outer front proxies")}
	args := []string{"--requestheader-client-ca-file=" + alone.Bundle(t, h.outer), "--requestheader-allowed-names=outer", "--requestheader-uid-headers=X-Remote-Uid"}
	if impersonates {
		args = append(args, "--local-identity=impersonate", "--kubeconfig="+must.Get(c.Account(t.Context(), c.Endpoint(), "../../deploy", "managed"))(t))
	}
	h.front = must.Get(c.StartFairlead(t.Context(), cluster.Fairlead{Path: w.bin, Args: args}))(t)
	h.remote = extension.Start(t, extension.Config{
		GroupVersions: []string{"mirror.example.com/v1"}, CA: c.PKI.Serving.CA, Names: []string{"mirror.apps.svc"}, RequestHeaderCA: c.PKI.FrontProxy.CA.Pool(), RejectWith: http.StatusUnauthorized, Record: 64,
		Wrap: echo,
	})
	must.Do(t, c.Register(t.Context(), cluster.Backend{
		Namespace: "apps", Service: "mirror", Port: h.remote.Port(), CAFile: c.PKI.Serving.CertFile, GroupVersions: []string{"mirror.example.com/v1"},
	}))
	h.kubectl = kubectl.As(t, c.Endpoint(), c.Admin())
	h.kubectl.Run(t, "create", "clusterrole", "mirror", "--verb=*", "--resource=*.mirror.example.com")
	h.kubectl.Run(t, "create", "clusterrolebinding", "mirror", "--clusterrole=mirror", "--group=system:authenticated")
	h.kubectl.Run(t, "create", "clusterrolebinding", "wheel", "--clusterrole=cluster-admin", "--group=wheel")
	h.kubectl.Run(t, "create", "serviceaccount", "robot")
	// As a user of wheel, because Fairlead cannot impersonate system:masters, and as one who has only the other role.
	for _, groups := range [][]string{{"wheel"}, nil} {
		c := client(h.tls(h.PKI.Client.CA.Issue(pki.Leaf{CommonName: "first", Organizations: groups})), "h2")
		defer c.CloseIdleConnections()
		suite.Eventually(t, 2*time.Minute, fmt.Sprint("mirror served to ", groups), func() (bool, string) {
			status, body := alone.Get(t, c, h.front.Endpoint.URL+echoes+"1")
			return status == http.StatusOK, body
		})
	}
	return h
}

// mint creates unused tokens of the ServiceAccount robot.
func (h *harbour) mint(t *testing.T, n int) []string {
	t.Helper()
	var tokens []string
	for range n {
		tokens = append(tokens, strings.TrimSpace(h.kubectl.Run(t, "create", "token", "robot")))
	}
	return tokens
}

// tls is the configuration of connections to Fairlead with a key pair, or with none if it is nil.
func (h *harbour) tls(pair *pki.Pair) *tls.Config {
	c := &tls.Config{RootCAs: h.PKI.Serving.CA.Pool(), MinVersion: tls.VersionTLS12, ServerName: "127.0.0.1"}
	if pair != nil {
		p := pair.TLS()
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &p, nil } // whatever CAs the server accepts
	}
	return c
}
