//go:build e2e

package entrypoint

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

const port = 8443 // of every Fairlead

// world is a cluster, and the tools to use it.
type world struct {
	*cluster.Cluster
	dir      string
	fairlead string // executables
	kubectl  string
	direct   string // kubeconfig of a user in system:masters, past Fairlead
	core     kubernetes.Interface
}

func newWorld(t *testing.T, name string, fairlead string, args ...string) *world {
	t.Helper()
	dir := suite.Folder(t, "entrypoint-"+name)
	w := &world{dir: dir, fairlead: fairlead, kubectl: suite.Tool(t, "kubectl"), direct: filepath.Join(dir, "direct.kubeconfig")}
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: args})
	w.core = must.Get(kubernetes.NewForConfig(w.Cluster.Endpoint().RESTConfig(w.Admin())))(t)
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(w.direct, w.Admin()))
	// The shipped manifests, combined as in docs/operations.md.
	folder := filepath.Join(dir, "overlay")
	must.Do(t, os.Mkdir(folder, 0o755))
	deploy := must.Get(filepath.Abs("../../deploy"))(t)
	for _, part := range []string{"base", "components", "overlays"} {
		must.Do(t, os.CopyFS(filepath.Join(dir, "deploy", part), os.DirFS(filepath.Join(deploy, part))))
	}
	must.Do(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte("resources: [../deploy/overlays/control-plane]\ncomponents: [../deploy/components/entrypoint]\n"), 0o600))
	rendered := w.run(t, "", w.kubectl, "kustomize", folder)
	if !strings.Contains(rendered, "- --publish-kubernetes-endpoints") {
		t.Fatalf("the component does not set the flag:\n%s", rendered)
	}
	w.run(t, rendered, w.kubectl, "--kubeconfig", w.direct, "apply", "-f", "-")
	return w
}

// run runs a program that must succeed.
func (w *world) run(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a := suite.Run(t, exec.CommandContext(ctx, name, args...), stdin)
	if a.Code != 0 {
		t.Fatalf("%s %s: exit code %d\n%s%s", filepath.Base(name), strings.Join(args, " "), a.Code, a.Out, a.Errs)
	}
	return a.Out
}

// start runs a Fairlead with the shipped ServiceAccount at an address.
func (w *world) start(t *testing.T, name, address string, args ...string) *cluster.Front {
	t.Helper()
	kubeconfig := filepath.Join(w.dir, name+"-account.kubeconfig")
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(kubeconfig, cluster.Credentials{Token: suite.Token(t, w.core, "kube-system", "fairlead")}))
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
		Path: w.fairlead, Name: name, Address: address, Port: port,
		Args: append([]string{"--kubeconfig=" + kubeconfig, "--publish-kubernetes-endpoints", "--advertise-address=" + address}, args...),
	}))(t)
	return front
}

// publishes waits until the Service has exactly these endpoints, and returns how long that took.
func (w *world) publishes(t *testing.T, most time.Duration, addresses ...string) time.Duration {
	t.Helper()
	begun := time.Now()
	var want []netip.AddrPort
	for _, a := range addresses {
		want = append(want, netip.AddrPortFrom(netip.MustParseAddr(a), port))
	}
	suite.Eventually(t, most, fmt.Sprintf("published: %v", want), func() (bool, string) {
		got, err := endpoints(t.Context(), w.core)
		return err == nil && slices.Equal(got, want), fmt.Sprint(got, err)
	})
	took := time.Since(begun)
	// The Endpoints object must agree.
	old := must.Get(w.core.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
	var have []string
	for _, s := range old.Subsets {
		for _, a := range s.Addresses {
			have = append(have, a.IP)
		}
	}
	if slices.Sort(have); !slices.Equal(have, addresses) {
		t.Errorf("Endpoints say %v, EndpointSlices %v", have, addresses)
	}
	return took
}

// podConfig is a pod's client configuration: environment variables, a token and a CA bundle at
// fixed places.
func (w *world) podConfig(t *testing.T) *rest.Config {
	t.Helper()
	const folder = "/var/run/secrets/kubernetes.io/serviceaccount"
	must.Do(t, os.MkdirAll(folder, 0o755))
	must.Do(t, os.WriteFile(folder+"/ca.crt", must.Get(os.ReadFile(w.PKI.Serving.CertFile))(t), 0o600))
	must.Do(t, os.WriteFile(folder+"/token", []byte(suite.Token(t, w.core, "default", "pod")), 0o600))
	t.Setenv("KUBERNETES_SERVICE_HOST", clusterIP)
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	return must.Get(rest.InClusterConfig())(t)
}

// pods are a pod's permissions.
const pods = `
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: default, name: pod}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pod}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pod}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pod}
subjects: [{kind: ServiceAccount, namespace: default, name: pod}]
`

func TestEntrypoint(t *testing.T) {
	network(t)
	fairlead := suite.Build(t, t.TempDir())
	t.Run("none", func(t *testing.T) { testClients(t, newWorld(t, "none", fairlead, "--advertise-address=10.79.0.9")) })
	t.Run("lease", func(t *testing.T) {
		testContest(t, newWorld(t, "lease", fairlead, "--endpoint-reconciler-type=lease", "--advertise-address=10.79.0.9"))
	})
}

func testClients(t *testing.T, w *world) {
	serviceProxy(t, w.core)
	w.run(t, pods, w.kubectl, "--kubeconfig", w.direct, "apply", "-f", "-")
	one := w.start(t, "one", "10.79.0.1")
	w.publishes(t, 5*time.Second, "10.79.0.1")
	two := w.start(t, "two", "10.79.0.2", "--shutdown-delay-duration=2s") // kube-proxies need time to notice
	w.publishes(t, 5*time.Second, "10.79.0.1", "10.79.0.2")
	inCluster := cluster.Endpoint{URL: "https://" + clusterIP, CAFile: w.PKI.Serving.CertFile}
	kubeconfig := filepath.Join(w.dir, "service.kubeconfig")
	must.Do(t, inCluster.WriteKubeconfig(kubeconfig, w.Admin()))
	through := func(args ...string) string {
		return w.run(t, "", w.kubectl, append([]string{"--kubeconfig", kubeconfig, "--cache-dir", filepath.Join(w.dir, "cache")}, args...)...)
	}
	config := w.podConfig(t)
	config.QPS = -1
	pod := must.Get(kubernetes.NewForConfig(config))(t)
	t.Run("a pod's client", func(t *testing.T) {
		must.Get(pod.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{}))(t)
		scrape := w.admitted(t, one) + w.admitted(t, two)
		if !regexp.MustCompile(`fairlead_request_total\{.*verb="create".*\} [1-9]`).MatchString(scrape) {
			t.Errorf("it bypassed Fairlead:\n%s", scrape)
		}
	})
	t.Run("kube-controller-manager", func(t *testing.T) {
		must.Get(w.StartControllerManager(t.Context(), inCluster))(t)
		through("create", "deployment", "idle", "--image=none", "--replicas=0")
		suite.Eventually(t, time.Minute, "a ReplicaSet", func() (bool, string) {
			out := through("get", "replicasets", "-o", "name")
			return strings.Contains(out, "replicaset.apps/idle-"), out
		})
		// It leaves other controllers' EndpointSlices alone.
		w.publishes(t, time.Second, "10.79.0.1", "10.79.0.2")
	})
	t.Run("kubectl", func(t *testing.T) {
		if out := through("get", "endpointslices", "kubernetes", "-o", "wide"); !strings.Contains(out, "10.79.0.1,10.79.0.2") {
			t.Errorf("kubectl printed:\n%s", out)
		}
	})
	t.Run("one drains", func(t *testing.T) {
		stop := w.clients(t, config)
		must.Do(t, two.Part.Signal(syscall.SIGTERM))
		took := w.publishes(t, time.Second, "10.79.0.1")
		t.Logf("its entry left after %s", took)
		<-two.Part.Done()
		if n := stop(); n > 0 {
			t.Errorf("%d requests of pods' clients failed", n)
		}
	})
	t.Run("it comes back", func(t *testing.T) {
		must.Do(t, two.Part.Restart(t.Context()))
		w.publishes(t, 5*time.Second, "10.79.0.1", "10.79.0.2")
	})
	t.Run("one dies", func(t *testing.T) {
		two.Part.Kill()
		// Documented are 12 s; the rest is for this machine.
		took := w.publishes(t, 15*time.Second, "10.79.0.1")
		t.Logf("its entry left after %s", took)
		must.Get(pod.CoreV1().ConfigMaps("default").Get(t.Context(), "mine", metav1.GetOptions{}))(t)
		through("delete", "deployment", "idle", "--cascade=foreground", "--timeout=60s") // kube-controller-manager still works
		scrape := w.admitted(t, one)
		for _, want := range []string{"fairlead_entrypoint_published 1", "fairlead_entrypoint_replicas 1", "fairlead_entrypoint_contested 0", "fairlead_entrypoint_foreign_writes_total 0"} {
			if !strings.Contains(scrape, want+"\n") {
				t.Errorf("the metrics lack %s", want)
			}
		}
	})
	t.Run("nothing was forbidden", func(t *testing.T) {
		log := must.Get(os.ReadFile(one.Part.LogFile()))(t)
		if strings.Contains(string(log), "forbidden") {
			t.Errorf("something was:\n%s", log)
		}
	})
}

// clients sends requests of eight pods' clients until the returned function is called, which
// returns the number of failed ones. Each client has a connection of its own, to a random Fairlead:
// only in one of 256 runs has one Fairlead none.
func (w *world) clients(t *testing.T, config *rest.Config) func() int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan int, 8)
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 50, 1          // each; more would load this machine
	config.Dial = new(net.Dialer).DialContext // with it, client-go shares no connections between clients
	for range cap(failed) {
		objects := must.Get(kubernetes.NewForConfig(config))(t).CoreV1().ConfigMaps("default")
		write := func() error { // client-go would repeat a failed read
			_, err := objects.Create(context.WithoutCancel(ctx), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "more"}}, metav1.CreateOptions{DryRun: []string{"All"}})
			return err
		}
		must.Do(t, write()) // connects
		go func() {
			n := 0
			for ctx.Err() == nil {
				if err := write(); err != nil {
					t.Log(err)
					n++
				}
			}
			failed <- n
		}()
	}
	return func() (n int) {
		cancel()
		for range cap(failed) {
			n += <-failed
		}
		return n
	}
}

// admitted returns a scrape of a Fairlead.
func (w *world) admitted(t *testing.T, f *cluster.Front) string {
	t.Helper()
	file := filepath.Join(w.dir, "admin-"+f.Part.Name())
	must.Do(t, f.Admin.WriteKubeconfig(file, w.Admin()))
	return w.run(t, "", w.kubectl, "--kubeconfig", file, "get", "--raw", "/metrics")
}

// testContest runs Fairlead against a kube-apiserver that still publishes itself, because an
// operator forgot the flag.
func testContest(t *testing.T, w *world) {
	front := w.start(t, "contested", "10.79.0.1")
	// kube-apiserver writes every ten seconds; its second write suffices.
	suite.Eventually(t, 40*time.Second, "given way", func() (bool, string) {
		scrape := w.admitted(t, front)
		return strings.Contains(scrape, "fairlead_entrypoint_contested 1\n"), regexp.MustCompile("(?m)^fairlead_entrypoint.*$").FindString(scrape)
	})
	log := must.Get(os.ReadFile(front.Part.LogFile()))(t)
	if !strings.Contains(string(log), "--endpoint-reconciler-type=none") {
		t.Errorf("the log does not name the flag:\n%s", log)
	}
	// kube-apiserver's endpoints stay: clients must not be switched back and forth.
	suite.Eventually(t, 15*time.Second, "kube-apiserver's own", func() (bool, string) {
		got, err := endpoints(t.Context(), w.core)
		return err == nil && len(got) == 1 && got[0].Addr().String() == "10.79.0.9", fmt.Sprint(got, err)
	})
}
