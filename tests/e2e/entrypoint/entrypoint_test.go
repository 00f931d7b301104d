//go:build e2e

package entrypoint

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
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
		if created == 0 {
			t.Error("it bypassed Fairlead")
		}
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
			if got, ok := scrape["fairlead_entrypoint_"+name]; !ok || got != want {
				t.Errorf("fairlead_entrypoint_%s is %v, want %v", name, got, want)
			}
		}
	})
	if log := must.Get(os.ReadFile(one.Part.LogFile()))(t); strings.Contains(string(log), "forbidden") {
		t.Errorf("something was forbidden:\n%s", log)
	}
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

// scrape returns a Fairlead's metrics.
func (w *world) scrape(t *testing.T, f *cluster.Front) map[string]float64 {
	t.Helper()
	return must.Get(ask.Metrics(t.Context(), suite.Client(t, f.Admin, w.Admin()), f.Admin.URL))(t)
}
