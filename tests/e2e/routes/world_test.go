//go:build e2e

package routes

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Group-versions with several backends.
const (
	external = "external.metrics.k8s.io/v1beta1"
	widgets  = "widgets.example.com/v1"
)

// world is a cluster with a Fairlead in front, whose policy a test replaces.
type world struct {
	*cluster.Cluster
	dir, kubectl, kubeconfig, policy string

	front *cluster.Front
	core  kubernetes.Interface // directly at kube-apiserver
	admin *http.Client         // through Fairlead
}

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

func newWorld(t *testing.T, args ...string) *world {
	t.Helper()
	netns.Up(t)
	dir := suite.Folder(t, "routes")
	w := &world{dir: dir, kubectl: suite.Tool(t, "kubectl"), kubeconfig: filepath.Join(dir, "admin.kubeconfig"), policy: filepath.Join(dir, "policy.yaml")}
	fairlead := suite.Build(t, dir, "cmd/kubectl-fairlead")
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: append(args, "--advertise-address="+here)})
	w.core = must.Get(kubernetes.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))(t)
	w.routes(t, external)
	w.front = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: fairlead, Args: []string{"--policy=" + w.policy}}))(t)
	must.Do(t, w.front.Endpoint.WriteKubeconfig(w.kubeconfig, w.Admin()))
	w.admin = suite.Client(t, w.front.Endpoint, w.Admin())
	return w
}

// routes writes the policy: these backends of a group-version beside its APIService's own.
func (w *world) routes(t *testing.T, groupVersion string, backends ...string) {
	t.Helper()
	text := "apiVersion: fairlead.dev/v1\nkind: Policy\n"
	if group, version, _ := strings.Cut(groupVersion, "/"); len(backends) > 0 {
		text += fmt.Sprintf("routes:\n- apiService: %s.%s\n  backends:\n%s", version, group, strings.Join(backends, ""))
	}
	suite.Put(t, w.policy, text)
}

// route is a backend of routes.
func (w *world) route(t *testing.T, b *cluster.Backend, rule string) string {
	t.Helper()
	ca := base64.StdEncoding.EncodeToString(must.Get(os.ReadFile(b.CAFile))(t))
	return fmt.Sprintf("  - service: {namespace: %s, name: %s, port: %d}\n    caBundle: %s\n    %s\n", b.Namespace, b.Service, b.Port, ca, rule)
}

// server is a backend and its process.
type server struct {
	*cluster.Part
	backend *cluster.Backend
}

// serve starts an extension server with a Service. Only with group-versions it gets APIServices.
func (w *world) serve(t *testing.T, program string, b *cluster.Backend, more ...string) server {
	t.Helper()
	path := suite.Tool(t, program)
	b.CAFile = w.PKI.Serving.CertFile
	e, args, err := w.ExtensionArgs(b)
	must.Do(t, err)
	var env []string
	ready := e.Serves("/readyz", w.Admin())
	if b.Addresses != nil {
		path, more = w.elsewhere(t, path), append(more, "--bind-address="+b.Addresses[0])
		ready = cluster.Listens(fmt.Sprintf("%s:%d", b.Addresses[0], b.Port))
	}
	for i, a := range args {
		if kubeconfig, ok := strings.CutPrefix(a, "--kubeconfig="); ok { // the custom-metrics library calls it so
			args[i] = "--lister-kubeconfig=" + kubeconfig
			env = environment(kubeconfig)
		}
	}
	p := must.Get(w.Run(t.Context(), cluster.Command{
		Name: b.Service, Path: path, Args: slices.Concat(args, more), Env: env, Ready: ready,
	}))(t)
	must.Do(t, w.Register(t.Context(), *b))
	return server{p, b}
}

// Hosts of a network between this namespace and the namespace elsewhere.
const here, there = "10.81.0.1", "10.81.0.2"

// network makes the namespace elsewhere.
func network(t *testing.T) {
	t.Helper()
	netns.Hide(t, "/run/netns")
	for _, command := range []string{
		"netns add elsewhere", "link add plane type veth peer name pods", "link set pods netns elsewhere", "addr add " + here + "/24 dev plane", "link set plane up",
		"-n elsewhere link set lo up", "-n elsewhere addr add " + there + "/24 dev pods", "-n elsewhere link set pods up",
	} {
		netns.IP(t, command)
	}
}

// elsewhere returns a script that runs a program in the namespace elsewhere.
func (w *world) elsewhere(t *testing.T, path string) string {
	t.Helper()
	script := filepath.Join(w.dir, "elsewhere-"+filepath.Base(path))
	must.Do(t, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\nexec ip netns exec elsewhere %s \"$@\"\n", path), 0o700))
	return script
}

// run runs kubectl through Fairlead.
func (w *world) run(t *testing.T, stdin string, words ...string) suite.Answer {
	t.Helper()
	return suite.Run(t, exec.CommandContext(t.Context(), w.kubectl, append(words, "--kubeconfig="+w.kubeconfig)...), stdin)
}

func (w *world) apply(t *testing.T, text string, words ...string) {
	t.Helper()
	if a := w.run(t, text, append([]string{"apply", "--server-side", "-f"}, words...)...); a.Code != 0 {
		t.Fatal(a.Errs)
	}
}
