//go:build e2e

package operate

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

// TestOperate runs every case on one cluster.
func TestOperate(t *testing.T) {
	w := newWorld(t)
	t.Run("tutorial", func(t *testing.T) { testTutorial(t, w) }) // before the others, because it measures an outage
	t.Run("topologies", func(t *testing.T) { testTopologies(t, w) })
	suite.Cases[*world]{ // in parallel, because most of them wait
		{"manifests", testManifests},
		{"documents", testDocuments},
		{"layouts", testLayouts},
		{"runbooks", testRunbooks},
		{"roles", testRoles},
		{"explain", testExplain},
		{"alerts", testAlerts},
		{"page", testPage},
		{"needs", testNeeds},
	}.Beside(t, w)
}

// world is what all cases share: a cluster with the shipped manifests, and a Fairlead with the shipped ServiceAccount.
type world struct {
	*cluster.Cluster
	dir      string
	fairlead string // executables
	kubectl  string
	core     kubernetes.Interface
	ca       *pki.CA // signs the serving certificates of extension servers
	caFile   string
	fronts   *x509.CertPool
	front    *cluster.Front
	admin    string // kubeconfigs: of a member of system:masters, through Fairlead
	direct   string // and directly at kube-apiserver

	alone sync.Mutex // held by the only case whose Fairleads publish default/kubernetes or take part in an election
}

// protected claims a group of Kubernetes. It must exist before the policy that forbids it.
const protected = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v9.batch}
spec: {group: batch, version: v9, groupPriorityMinimum: 100, versionPriority: 1, insecureSkipTLSVerify: true, service: {namespace: operate, name: thief}}
`

func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Up(t, "10.79.0.0/16")
	dir := suite.Folder(t, "operate")
	w := &world{
		dir: dir, fairlead: suite.Build(t, dir, "cmd/kubectl-fairlead"), kubectl: suite.Tool(t, "kubectl"), ca: pki.NewCA("extension-ca"),
		admin: filepath.Join(dir, "front.kubeconfig"), direct: filepath.Join(dir, "direct.kubeconfig"),
	}
	w.caFile, _ = must.Get2(w.ca.WriteFiles(dir, "extension-ca"))(t)
	copyDeploy(t, dir) // for compose
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, Audit: true, APIServerArgs: []string{"--advertise-address=10.79.0.1"}})
	w.core = must.Get(kubernetes.NewForConfig(w.Cluster.Endpoint().RESTConfig(w.Admin())))(t)
	w.fronts = suite.Pool(t, w.PKI.FrontProxy.CertFile)
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(w.direct, w.Admin()))
	w.apply(t, `
{apiVersion: v1, kind: Namespace, metadata: {name: operate}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: kube-system}}
---`+protected)
	w.apply(t, w.kustomize(t, "base"))
	w.front = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Args: []string{"--kubeconfig=" + w.account(t)}}))(t)
	must.Do(t, w.front.Endpoint.WriteKubeconfig(w.admin, w.Admin()))
	w.bound(t, "system:fairlead-metrics")
	return w
}

func (w *world) account(t *testing.T) string {
	t.Helper()
	file := filepath.Join(w.dir, "fairlead.kubeconfig")
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(file, cluster.Credentials{Token: suite.Token(t, w.core, "kube-system", "fairlead")}))
	return file
}

func command(t *testing.T, stdin, name string, args ...string) suite.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute) // alone, promtool needs 35 s on a slow machine
	defer cancel()
	return suite.Run(t, exec.CommandContext(ctx, name, args...), stdin)
}

func succeed(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	a := command(t, stdin, name, args...)
	must.Be(t, a.Code == 0, "%s %s: exit code %d\n%s%s", filepath.Base(name), strings.Join(args, " "), a.Code, a.Out, a.Errs)
	return a.Out
}

func (w *world) kustomize(t *testing.T, folder string) string {
	t.Helper()
	return succeed(t, "", w.kubectl, "kustomize", "../../../deploy/"+folder)
}

func (w *world) apply(t *testing.T, manifests string) {
	t.Helper()
	succeed(t, manifests, w.kubectl, "--kubeconfig", w.direct, "apply", "-f", "-")
}

func (w *world) ask(t *testing.T, line string) string {
	t.Helper()
	return succeed(t, "", w.kubectl, append([]string{"--kubeconfig", w.direct}, strings.Fields(line)...)...)
}

// get sends a GET with a token, or as a member of system:masters without one, and returns code and body.
func (w *world) get(t *testing.T, e cluster.Endpoint, path, token string) (int, string) {
	t.Helper()
	client := suite.Client(t, e, cmp.Or(cluster.Credentials{Token: token}, w.Admin()))
	client.CheckRedirect = nil // follows redirects, as a browser does
	defer client.CloseIdleConnections()
	reply := must.Get(ask.Do(t.Context(), client, http.MethodGet, e.URL+path, nil, ""))(t)
	return reply.Code, reply.Body
}

// wants fails the test unless a GET with a token has the status.
func (w *world) wants(t *testing.T, want int, e cluster.Endpoint, path, token string) {
	t.Helper()
	code, body := w.get(t, e, path, token)
	check.Same(t, want, code, "status of %s: %s", path, body)
}

// serves waits until a GET with a token succeeds, because recent changes may not be known yet.
func (w *world) serves(t *testing.T, most time.Duration, e cluster.Endpoint, path, token string) {
	t.Helper()
	suite.Eventually(t, most, path+" is served", func() (bool, string) {
		code, body := w.get(t, e, path, token)
		return code == http.StatusOK, fmt.Sprint(code, " ", body)
	})
}
