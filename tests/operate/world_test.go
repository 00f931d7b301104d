//go:build e2e

package operate

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// world is what all cases share: a cluster with the shipped manifests, and a Fairlead with the
// shipped ServiceAccount.
type world struct {
	*cluster.Cluster
	dir      string
	fairlead string // executables
	kubectl  string
	core     kubernetes.Interface
	ca       *pki.CA // signs the serving certificates of extension servers
	fronts   *x509.CertPool
	front    *cluster.Front
	admin    string // kubeconfigs: of a member of system:masters, through Fairlead
	direct   string // and directly at kube-apiserver

	alone sync.Mutex // held by the only case whose Fairleads publish default/kubernetes or take part in an election
}

func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Up(t, "10.79.0.0/16")
	dir := suite.Folder(t, "operate")
	w := &world{
		dir: dir, fairlead: suite.Build(t, dir, "cmd/kubectl-fairlead"), kubectl: suite.Tool(t, "kubectl"), ca: pki.NewCA("extension-ca"),
		admin: filepath.Join(dir, "front.kubeconfig"), direct: filepath.Join(dir, "direct.kubeconfig"),
	}
	policy := filepath.Join(dir, "audit.yaml")
	must.Do(t, os.WriteFile(policy, []byte(auditPolicy), 0o600))
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{
		"--advertise-address=10.79.0.1", "--audit-policy-file=" + policy, "--audit-log-path=" + filepath.Join(dir, "audit.jsonl"),
	}})
	config := w.Cluster.Endpoint().RESTConfig(w.Admin())
	config.WarningHandler = rest.NoWarnings{} // without the warning that Endpoints are deprecated
	w.core = must.Get(kubernetes.NewForConfig(config))(t)
	w.fronts = suite.Pool(t, w.PKI.FrontProxy.CertFile)
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(w.direct, w.Admin()))
	w.apply(t, namespaces+protected)
	w.apply(t, w.kustomize(t, "base"))
	w.front = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.fairlead, Args: []string{"--kubeconfig=" + w.account(t, "kube-system", "fairlead")}}))(t)
	must.Do(t, w.front.Endpoint.WriteKubeconfig(w.admin, w.Admin()))
	return w
}

// auditPolicy is for testRoles: who asked for what.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`

const namespaces = `
{apiVersion: v1, kind: Namespace, metadata: {name: operate}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: kube-system}}
---
`

// protected claims a group of Kubernetes. It must exist before the policy that forbids it.
const protected = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v9.batch}
spec: {group: batch, version: v9, groupPriorityMinimum: 100, versionPriority: 1, insecureSkipTLSVerify: true, service: {namespace: operate, name: thief}}
`

func (w *world) kustomize(t *testing.T, folder string) string {
	t.Helper()
	return succeed(t, "", w.kubectl, "kustomize", "../../deploy/"+folder)
}

func (w *world) apply(t *testing.T, manifests string) {
	t.Helper()
	succeed(t, manifests, w.kubectl, "--kubeconfig", w.direct, "apply", "-f", "-")
}

func (w *world) account(t *testing.T, namespace, name string) string {
	t.Helper()
	file := filepath.Join(w.dir, namespace+"-"+name+".kubeconfig")
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(file, cluster.Credentials{Token: suite.Token(t, w.core, namespace, name)}))
	return file
}
