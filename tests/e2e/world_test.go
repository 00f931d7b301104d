//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/issuer"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// world is a cluster with everything that the cases need. They share it, each with its own
// namespaces.
type world struct {
	*cluster.Cluster

	lane    string           // h2, http1, impersonate or direct
	uids    bool             // the cluster trusts X-Remote-Uid
	tokens  *issuer.Issuer   // of JWTs that the first kube-apiserver accepts; in lane impersonate Fairlead does, too, but not the kube-apiserver behind it
	front   *cluster.Front   // Fairlead; nil in a direct run
	server  cluster.Endpoint // under test: Fairlead, or kube-apiserver in a direct run
	kubectl string           // executable
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
	// kube-apiserver compacts etcd every five minutes by default, too long for the case that waits
	// for it. Except in lane h2, clusters trust X-Remote-Uid, unlike kubeadm's. All have a second
	// name for each request header of a front proxy.
	w := &world{lane: lane, uids: lane != "h2", cache: filepath.Join(dir, "kubectl-cache"), tokens: issuer.Start(t)}
	issuers := filepath.Join(dir, "issuers.yaml")
	must.Do(t, os.WriteFile(issuers, []byte(w.tokens.Config("oidc:")), 0o600))
	cfg := cluster.Config{Dir: dir, UIDHeaders: w.uids, APIServerArgs: []string{"--etcd-compaction-interval=5s"}, BelieverArgs: []string{
		"--requestheader-username-headers=X-Harbour-User", "--requestheader-group-headers=X-Harbour-Group", "--requestheader-extra-headers-prefix=X-Harbour-Extra-",
		"--authentication-config=" + issuers,
	}}
	if lane == impersonate { // Fairlead is compared with the first kube-apiserver, and runs in front of the second
		cfg.APIServers, cfg.Clouds, cfg.AdminGroup = 2, 1, "harbour-masters"
	}
	w.Cluster = suite.Start(t, cfg)
	c := w.Cluster
	w.server = c.Endpoint()
	must.Get(c.StartSampleAPIServer(ctx))(t)
	if lane != direct {
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
			w.allowExtras(t)
		}
		w.front = must.Get(c.StartFairlead(ctx, cluster.Fairlead{Path: fairlead, Args: args}))(t)
		w.server = w.front.Endpoint
	}
	must.Get(c.StartControllerManager(ctx, w.server))(t)
	soon, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	must.Do(t, c.WaitAvailable(soon, w.server, "wardle.example.com/v1beta1", "wardle.example.com/v1alpha1"))
	w.kubectl = suite.Tool(t, "kubectl")
	rc := w.server.RESTConfig(c.Admin())
	w.core, w.dynamic = must.Get(kubernetes.NewForConfig(rc))(t), must.Get(dynamic.NewForConfig(rc))(t)
	return w
}

// allowExtras adds to the shipped rules what each installation must add: the keys of its users'
// extras.
func (w *world) allowExtras(t *testing.T) {
	t.Helper()
	rbac := must.Get(kubernetes.NewForConfig(w.EndpointOf(0).RESTConfig(w.Admin())))(t).RbacV1()
	must.Get(rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "harbour-extras"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"userextras/scopes", "userextras/example.com/path"}, Verbs: []string{"impersonate"}},
	}}, metav1.CreateOptions{}))(t)
	must.Get(rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "harbour-extras"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "harbour-extras"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "fairlead"}},
	}, metav1.CreateOptions{}))(t)
}

// namespace makes a namespace for one case. It is not deleted, because the whole cluster is.
func (w *world) namespace(t *testing.T) string {
	t.Helper()
	ns, err := w.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "case-"}}, metav1.CreateOptions{})
	must.Do(t, err)
	return ns.Name
}

// caller runs kubectl as one user.
type caller struct {
	w          *world
	kubeconfig string
	cache      string
	env        []string
}

// as returns kubectl for the user of cr and the server e.
func (w *world) as(t *testing.T, e cluster.Endpoint, cr cluster.Credentials) caller {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, e.WriteKubeconfig(file, cr))
	return caller{w: w, kubeconfig: file, cache: w.cache}
}

// admin returns kubectl for an administrator of the server under test.
func (w *world) admin(t *testing.T) caller {
	t.Helper()
	return w.as(t, w.server, w.Admin())
}

func (c caller) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.w.kubectl, append([]string{"--kubeconfig", c.kubeconfig, "--cache-dir", c.cache}, args...)...)
	cmd.Env = append(os.Environ(), c.env...)
	return cmd
}

// try runs kubectl with stdin.
func (c caller) try(t *testing.T, stdin string, args ...string) suite.Answer {
	t.Helper()
	// 2 min: no command takes a second, except deletions that wait for controllers.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return suite.Run(t, c.command(ctx, args...), stdin)
}

// run runs kubectl, which must succeed, and returns its standard output.
func (c caller) run(t *testing.T, args ...string) string {
	t.Helper()
	return c.feed(t, "", args...)
}

// feed is run with a standard input.
func (c caller) feed(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	a := c.try(t, stdin, args...)
	if a.Code != 0 {
		t.Fatalf("kubectl %s: exit code %d\n%s%s", strings.Join(args, " "), a.Code, a.Out, a.Errs)
	}
	return a.Out
}

// fail runs kubectl, which must fail with want in its standard error.
func (c caller) fail(t *testing.T, want, stdin string, args ...string) {
	t.Helper()
	a := c.try(t, stdin, args...)
	if a.Code == 0 || !strings.Contains(a.Errs, want) {
		t.Errorf("kubectl %s: exit code %d, want a failure with %q\n%s%s", strings.Join(args, " "), a.Code, want, a.Out, a.Errs)
	}
}

// soon runs kubectl until it succeeds, because authorizers learn of changes by a watch and Fairlead
// caches refusals for 10 s, and returns its standard output.
func (c caller) soon(t *testing.T, what string, args ...string) string {
	t.Helper()
	var a suite.Answer
	suite.Eventually(t, time.Minute, what, func() (bool, string) {
		a = c.try(t, "", args...)
		return a.Code == 0, a.Errs
	})
	return a.Out
}
