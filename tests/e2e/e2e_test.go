//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki/issuer"
)

// impersonate is a lane in front of a kube-apiserver that trusts no front proxy
// (--local-identity=impersonate), with HTTP/2 for clients.
const impersonate = "impersonate"

// TestE2E runs every case through Fairlead, with kubectl and client-go, in every lane: the protocols that Fairlead
// offers to clients (--http2), and the ways in which it reaches kube-apiserver. Clients must not notice a difference.
// tests/e2e/differential compares the documents of discovery with those of kube-apiserver.
func TestE2E(t *testing.T) {
	fairlead := suite.Build(t, t.TempDir())
	var alone sync.Mutex
	for _, lane := range []string{"h2", "http1", impersonate} {
		t.Run(lane, func(t *testing.T) {
			t.Parallel() // most of the time passes in waiting
			w := newWorld(t, lane, fairlead)
			q := newQuay(t, w)
			t.Run("flood", func(t *testing.T) {
				alone.Lock() // one flood at a time is enough for a small machine
				defer alone.Unlock()
				testFlood(t, q)
			})
			t.Run("admin", func(t *testing.T) { testAdmin(t, q) })
			cases := suite.Cases[*world]{ // the deletions of some run while others work
				{"kubectl", testKubectl},
				{"crd", testCustomResources},
				{"controllers", testControllers},
				{"nodes", testNodes},
				{"identity", func(t *testing.T, _ *world) { testIdentity(t, q) }},
				{"encodings", testEncodings},
			}
			cases.Beside(t, w)
		})
	}
}

// world is a cluster with everything that the cases need. They share it, each with its own namespaces.
type world struct {
	*cluster.Cluster

	lane    string           // h2, http1 or impersonate
	uids    bool             // the cluster trusts X-Remote-Uid
	gates   bool             // alpha gates are on
	tokens  *issuer.Issuer   // of JWTs that the first kube-apiserver accepts; in lane impersonate Fairlead does, too, but not the kube-apiserver behind it
	front   *cluster.Front   // Fairlead
	server  cluster.Endpoint // its front port
	cache   string           // kubectl's discovery cache for server, shared by cases that do not test discovery
	core    kubernetes.Interface
	dynamic dynamic.Interface
}

// protos returns the protocols that the server offers, best first.
func (w *world) protos() []string {
	if w.lane == "http1" {
		return []string{"http/1.1"}
	}
	return []string{"h2", "http/1.1"}
}

// newWorld starts a cluster with the sample extension server, Fairlead in front of it in the given
// lane, and kube-controller-manager as a client of Fairlead.
func newWorld(t *testing.T, lane, fairlead string) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute) // the programs may have to be built first
	defer cancel()
	dir := suite.Folder(t, "e2e-"+lane)
	// Except in lane h2, clusters trust X-Remote-Uid, unlike kubeadm's. All have a second name for
	// each request header of a front proxy.
	w := &world{lane: lane, uids: lane != "h2", gates: lane != "h2", cache: filepath.Join(dir, "kubectl-cache"), tokens: issuer.Start(t)}
	issuers := filepath.Join(dir, "issuers.yaml")
	config := strings.Replace(w.tokens.Config("oidc:"), "k8s.io/v1\n", "k8s.io/v1beta1\n", 1) // every release reads this version
	must.Do(t, os.WriteFile(issuers, []byte(config), 0o600))
	cfg := cluster.Config{Dir: dir, UIDHeaders: w.uids, BelieverArgs: []string{
		"--requestheader-username-headers=X-Harbour-User", "--requestheader-group-headers=X-Harbour-Group", "--requestheader-extra-headers-prefix=X-Harbour-Extra-",
		"--authentication-config=" + issuers,
	}}
	if lane == impersonate { // Fairlead is compared with the first kube-apiserver, and runs in front of the second
		cfg.APIServers, cfg.Clouds, cfg.AdminGroup = 2, 1, "harbour-masters"
	}
	more := []string{"--disable-http2-serving=" + strconv.FormatBool(lane == "http1")} // all the way
	if w.gates {
		cfg.APIServerArgs, more = []string{"--feature-gates=" + fmt.Sprintf(alpha, "")}, append(more, "--feature-gates="+fmt.Sprintf(alpha, "kube:"))
	}
	w.Cluster = suite.Start(t, cfg)
	c := w.Cluster
	must.Get(c.StartSampleAPIServer(ctx, more...))(t)
	args := []string{
		"--http2=" + strconv.FormatBool(lane != "http1"), "--requestheader-username-headers=X-Remote-User,X-Harbour-User", "--requestheader-group-headers=X-Remote-Group,X-Harbour-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-,X-Harbour-Extra-",
	}
	if w.uids {
		args = append(args, "--requestheader-uid-headers=X-Remote-Uid")
	}
	if lane == impersonate {
		kubeconfig := must.Get(c.Account(ctx, c.EndpointOf(1), "../../deploy", "managed"))(t)
		args = append(args, "--kubeconfig="+kubeconfig, "--local-identity=impersonate", "--authentication-config="+issuers)
		w.as(t, c.Endpoint(), c.Admin()).Feed(t, extras, "apply", "-f", "-")
	}
	w.front = must.Get(c.StartFairlead(ctx, cluster.Fairlead{Path: fairlead, Args: args}))(t)
	w.server = w.front.Endpoint
	must.Get(c.StartControllerManager(ctx, w.server))(t)
	soon, cancel := context.WithTimeout(ctx, 2*time.Minute) // lanes start at once, with ten programs
	defer cancel()
	must.Do(t, c.WaitAvailable(soon, w.server, "wardle.example.com/v1beta1", "wardle.example.com/v1alpha1"))
	rc := w.server.RESTConfig(c.Admin())
	w.core, w.dynamic = must.Get(kubernetes.NewForConfig(rc))(t), must.Get(dynamic.NewForConfig(rc))(t)
	return w
}

// extras is what each installation must add to the shipped rules: the keys of its users' extras.
const extras = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: harbour-extras}
rules: [{apiGroups: [authentication.k8s.io], resources: [userextras/scopes, userextras/example.com/path], verbs: [impersonate]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: harbour-extras}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: harbour-extras}
subjects: [{kind: ServiceAccount, namespace: kube-system, name: fairlead}]
`

// namespace makes a namespace for one case. It is not deleted, because the whole cluster is.
func (w *world) namespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "case-"}}
	return must.Get(w.core.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}))(t).Name
}

// as returns kubectl for the user of cr and the server e.
func (w *world) as(t *testing.T, e cluster.Endpoint, cr cluster.Credentials) kubectl.User {
	t.Helper()
	kc := kubectl.As(t, e, cr)
	kc.Cache = w.cache
	return kc
}

// admin returns kubectl for an administrator of the server under test.
func (w *world) admin(t *testing.T) kubectl.User {
	t.Helper()
	return w.as(t, w.server, w.Admin())
}
