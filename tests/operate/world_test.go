//go:build e2e

package operate

import (
	"context"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

// world is what all cases share: a cluster with the shipped manifests, and a Fairlead that runs as the shipped ServiceAccount.
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
	direct   string // and at kube-apiserver itself

	alone sync.Mutex // held by the one case whose Fairleads publish default/kubernetes, or take part in an election
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // the parts may have to be built first
	defer cancel()
	netns.Up(t, "10.79.0.0/16")
	dir, err := os.MkdirTemp("", "fairlead-operate-") //nolint:usetesting // the logs are what one needs when a case fails
	check(t, err)
	w := &world{dir: dir, fairlead: filepath.Join(dir, "fairlead"), ca: pki.NewCA("extension-ca"), admin: filepath.Join(dir, "front.kubeconfig"), direct: filepath.Join(dir, "direct.kubeconfig")}
	out, err := exec.CommandContext(ctx, "go", "build", "-o", w.fairlead, "../../cmd/fairlead").CombinedOutput()
	if err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	w.kubectl, err = tools.Path(ctx, tools.Config{Progress: os.Stderr}, "kubectl")
	check(t, err)
	w.Cluster, err = cluster.Start(ctx, cluster.Config{Dir: dir, APIServerArgs: []string{"--advertise-address=10.79.0.1"}})
	check(t, err)
	t.Cleanup(func() {
		check(t, w.Close())
		if t.Failed() {
			t.Logf("logs of all parts: %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	config := w.Cluster.Endpoint().RESTConfig(w.Admin())
	config.WarningHandler = rest.NoWarnings{} // that Endpoints are old is known
	w.core, err = kubernetes.NewForConfig(config)
	check(t, err)
	pem, err := os.ReadFile(w.PKI.FrontProxy.CertFile)
	check(t, err)
	w.fronts = x509.NewCertPool()
	w.fronts.AppendCertsFromPEM(pem)
	check(t, w.Cluster.Endpoint().WriteKubeconfig(w.direct, w.Admin()))
	w.apply(t, namespaces+protected)
	w.apply(t, w.kustomize(t, "base"))
	w.front, err = w.StartFairlead(ctx, cluster.Fairlead{Path: w.fairlead, Args: []string{"--kubeconfig=" + w.account(t, "kube-system", "fairlead")}})
	check(t, err)
	check(t, w.front.Endpoint.WriteKubeconfig(w.admin, w.Admin()))
	return w
}

const namespaces = `
{apiVersion: v1, kind: Namespace, metadata: {name: operate}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: kube-system}}
---
`

// protected claims a group of Kubernetes' own. It must be there before the policy that forbids it.
const protected = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v9.batch}
spec: {group: batch, version: v9, groupPriorityMinimum: 100, versionPriority: 1, insecureSkipTLSVerify: true, service: {namespace: operate, name: thief}}
`

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kustomize renders a folder of deploy.
func (w *world) kustomize(t *testing.T, folder string) string {
	t.Helper()
	return must(t, "", w.kubectl, "kustomize", "../../deploy/"+folder)
}

// apply applies manifests at kube-apiserver itself.
func (w *world) apply(t *testing.T, manifests string) {
	t.Helper()
	must(t, manifests, w.kubectl, "--kubeconfig", w.direct, "apply", "-f", "-")
}

// account returns a kubeconfig with a token of a ServiceAccount.
func (w *world) account(t *testing.T, namespace, name string) string {
	t.Helper()
	file := filepath.Join(w.dir, namespace+"-"+name+".kubeconfig")
	check(t, w.Cluster.Endpoint().WriteKubeconfig(file, cluster.Credentials{Token: w.token(t, namespace, name)}))
	return file
}

func (w *world) token(t *testing.T, namespace, name string) string {
	t.Helper()
	r, err := w.core.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	check(t, err)
	return r.Status.Token
}

// eventually asks until ok says yes, or reports the last answer.
func eventually(t *testing.T, most time.Duration, what string, ok func() (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
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
