//go:build e2e

package entrypoint

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

func TestEntrypoint(t *testing.T) {
	const first, second = "10.79.0.1:8443", "10.79.0.2:8443"
	w := newWorld(t)
	w.serviceProxy(t, clusterIP)
	one := w.start(t, "one", "10.79.0.1")
	w.publishes(t, 5*time.Second, first)
	two := w.start(t, "two", "10.79.0.2", "--shutdown-delay-duration=2s") // kube-proxies need time to notice
	w.publishes(t, 5*time.Second, first, second)
	inCluster := cluster.Endpoint{URL: "https://" + clusterIP, CAFile: w.PKI.Serving.CertFile}
	config := w.podConfig(t)
	pod := must.Get(kubernetes.NewForConfig(config))(t)
	t.Run("a pod's client", func(t *testing.T) {
		must.Get(pod.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{}))(t)
		created := 0.0
		for _, f := range []*cluster.Front{one, two} {
			for name, n := range w.scrape(t, f) {
				if strings.HasPrefix(name, "fairlead_request_total{") && strings.Contains(name, `verb="create"`) {
					created += n
				}
			}
		}
		check.Same(t, true, created != 0, "it bypassed Fairlead")
	})
	t.Run("kube-controller-manager", func(t *testing.T) {
		must.Get(w.StartControllerManager(t.Context(), inCluster))(t)
		admin := kubectl.As(t, inCluster, w.Admin())
		admin.Run(t, "create", "deployment", "idle", "--image=none", "--replicas=0")
		suite.Eventually(t, time.Minute, "a ReplicaSet", func() (bool, string) {
			out := admin.Run(t, "get", "replicasets", "-o", "name")
			return strings.Count(out, "\n") == 1, out
		})
		w.publishes(t, time.Second, first, second) // it leaves other controllers' EndpointSlices alone
	})
	t.Run("one drains", func(t *testing.T) {
		load := w.load(t, inCluster, config.BearerToken)
		suite.Pause(t, time.Second) // until all are connected
		must.Do(t, two.Part.Signal(syscall.SIGTERM))
		w.publishes(t, time.Second, first)
		<-two.Part.Done()
		volley.Judge(t, load.Stop(), 0, func(s *volley.Shot) bool { return s.Code != http.StatusCreated || s.Err != nil })
	})
	t.Run("one dies", func(t *testing.T) {
		must.Do(t, two.Part.Restart(t.Context()))
		w.publishes(t, 5*time.Second, first, second)
		two.Part.Kill()
		w.publishes(t, 15*time.Second, first) // documented are 12 s; the rest is for this machine
		must.Get(pod.CoreV1().ConfigMaps("default").Get(t.Context(), "mine", metav1.GetOptions{}))(t)
		scrape := w.scrape(t, one)
		for name, want := range map[string]float64{"published": 1, "replicas": 1, "contested": 0, "foreign_writes_total": 0} {
			got, ok := scrape["fairlead_entrypoint_"+name]
			check.Same(t, true, ok && got == want, "fairlead_entrypoint_%s is %v, want %v", name, got, want)
		}
	})
	check.Lacks(t, string(must.Get(os.ReadFile(one.Part.LogFile()))(t)), "forbidden")
}

// load sends requests of eight pods' clients. Each client has a connection of its own, to a random
// Fairlead: only in one of 256 runs has one Fairlead none.
func (w *world) load(t *testing.T, e cluster.Endpoint, token string) *volley.Load {
	t.Helper()
	l := &volley.Load{Every: 5 * time.Millisecond, Make: func(int) (string, string, string) {
		return http.MethodPost, e.URL + "/api/v1/namespaces/default/configmaps?dryRun=All", `{"metadata":{"name":"more"}}`
	}}
	for range 8 {
		l.Clients = append(l.Clients, suite.Client(t, e, cluster.Credentials{Token: token}))
	}
	return l.Start(t)
}

func (w *world) scrape(t *testing.T, f *cluster.Front) map[string]float64 {
	t.Helper()
	return must.Get(ask.Metrics(t.Context(), suite.Client(t, f.Admin, w.Admin()), f.Admin.URL))(t)
}

// startAt starts a cluster whose first kube-apiserver has this address.
func startAt(t *testing.T, dir, ip string, args ...string) *world {
	t.Helper()
	w := &world{fairlead: suite.Build(t, filepath.Join(dir, "bin"))}
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: append(at(ip), args...)})
	w.core = must.Get(kubernetes.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))(t)
	return w
}

// at returns the arguments that give a kube-apiserver an address. All that publish themselves have one port.
func at(ip string) []string {
	return []string{"--bind-address=" + ip, "--advertise-address=" + ip, "--secure-port=7443"}
}

// kube-apiservers that publish themselves, as in most clusters, come and go, and are replaced one
// after the other as in an upgrade. Nobody tells Fairlead, and no request fails.
func TestFollowed(t *testing.T) {
	const one, two = "10.80.1.1:7443", "10.80.1.2:7443"
	netns.Up(t, "10.80.0.0/16")
	w := startAt(t, suite.Folder(t, "followed"), "10.80.1.1", "--endpoint-reconciler-type=lease", "--shutdown-delay-duration=10s")
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
		Path: w.fairlead, Address: "10.80.0.1", Args: []string{"--local-apiservers-from=endpointslice"},
	}))(t)
	servers := func(want ...string) { t.Helper(); w.servers(t, front, want...) }
	servers(one)
	load := w.load(t, front.Endpoint, w.StaticToken("admin").Token)
	must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], at("10.80.1.2")...))
	servers(one, two)
	for i, rest := range []string{two, one} {
		part := w.APIServers[i]
		must.Do(t, part.Signal(syscall.SIGTERM))
		<-part.Done()
		servers(rest)
		must.Do(t, part.Restart(t.Context()))
		servers(one, two)
	}
	volley.Judge(t, load.Stop(), 0, func(s *volley.Shot) bool { return s.Code != http.StatusCreated || s.Err != nil })
	for line := range strings.SplitSeq(string(must.Get(os.ReadFile(front.Part.LogFile()))(t)), "\n") {
		if strings.Contains(line, "local apiserver") {
			t.Log(line)
		}
	}
}

// servers waits until these local apiservers of a Fairlead are healthy, and no others.
func (w *world) servers(t *testing.T, front *cluster.Front, want ...string) {
	t.Helper()
	took := suite.Eventually(t, time.Minute, strings.Join(want, ", "), func() (bool, string) {
		var got []string
		for name, n := range w.scrape(t, front) {
			if address, ok := strings.CutPrefix(name, `fairlead_local_apiserver_healthy{address="`); ok && n == 1 {
				got = append(got, strings.TrimSuffix(address, `"}`))
			}
		}
		slices.Sort(got)
		return slices.Equal(got, want), strings.Join(got, ", ")
	})
	t.Logf("%v after %s", want, took)
}

// Where Fairlead publishes itself, the Leases of kube-apiservers name them.
func TestLeased(t *testing.T) {
	netns.Up(t, "10.81.0.0/16")
	dir := suite.Folder(t, "leased")
	host := must.Get(os.Hostname())(t)
	hosts := filepath.Join(dir, "hosts")
	suite.Put(t, hosts, "127.0.0.1 localhost\n10.81.1.1 "+host+"\n10.81.1.2 kube-apiserver-1\n")
	must.Do(t, exec.CommandContext(t.Context(), "mount", "--bind", hosts, "/etc/hosts").Run()) // ends with this process's namespace
	w := startAt(t, dir, "10.81.1.1", "--endpoint-reconciler-type=none")
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
		Path: w.fairlead, Address: "10.81.0.1", Args: []string{"--local-apiservers-from=lease", "--publish-kubernetes-endpoints", "--advertise-address=10.81.0.1"},
	}))(t)
	w.servers(t, front, "10.81.1.1:7443", host+":7443") // the first leaves once the other is known
	must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], at("10.81.1.2")...))
	w.servers(t, front, "10.81.1.1:7443", "kube-apiserver-1:7443", host+":7443")
	w.publishes(t, 5*time.Second, strings.TrimPrefix(front.Endpoint.URL, "https://"))
}
