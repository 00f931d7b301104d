//go:build e2e

package fleet

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

// The hollow kubelets always listen on all addresses, so they get a network namespace.
func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

const (
	calm     = 5 * time.Second // how long the load runs before and after each event
	draining = 2 * time.Minute // how long a server may take to exit: kube-apiserver gives its requests 60 s
)

type world struct {
	*cluster.Cluster
	bin       string
	nodes     int                  // hollow kubelets, each a process
	core      kubernetes.Interface // of the kube-apiserver that is not stopped now
	front     cluster.Endpoint     // HAProxy's
	haproxy   *cluster.Part
	residents []*cluster.Part // controller manager, scheduler, kubelets
	load      *volley.Load
	watchers  []*http.Client
	// directly is how many requests failed at most when a kube-apiserver without a Fairlead was
	// stopped. Requests between its signal and its GOAWAY get 503: at fifty a second, none or one.
	directly int
}

// TestFleet stops and replaces servers under load: first the kube-apiservers without Fairlead, for
// comparison, then with Fairleads in both layouts, and the Fairleads themselves.
func TestFleet(t *testing.T) {
	w := newWorld(t, cluster.Config{APIServers: 2}, 20)
	layouts := []struct {
		name string
		// of returns the arguments that name the apiservers of Fairlead i. Nil means no Fairlead.
		of func(i int) []string
	}{
		{name: "direct"},
		{name: "each Fairlead its own apiserver", of: func(i int) []string { return []string{"--local-apiserver=" + w.EndpointOf(i).URL} }},
		{name: "both apiservers named to each", of: func(i int) []string {
			return []string{"--local-apiserver=" + w.EndpointOf(i).URL, "--local-apiserver=" + w.EndpointOf(1-i).URL}
		}},
	}
	for number, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			servers := w.servers()
			var fairleads []*cluster.Part
			for i := range servers {
				if l.of == nil {
					continue
				}
				f := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
					Path: w.bin, Name: fmt.Sprintf("fairlead-%d-%d", number, i), Args: append(l.of(i), "--shutdown-delay-duration=3s"),
				}))(t)
				defer f.Part.Kill()
				servers[i], fairleads = f.Endpoint, append(fairleads, f.Part)
			}
			w.point(t, servers...)
			for i, p := range w.APIServers {
				t.Run(fmt.Sprintf("kube-apiserver %d stopped and started", i), func(t *testing.T) {
					if l.of == nil {
						w.directly = max(w.directly, w.replace(t, p, 1-i, math.MaxInt))
						return
					}
					w.replace(t, p, 1-i, w.directly)
				})
			}
			for i, p := range fairleads {
				t.Run(fmt.Sprintf("Fairlead %d replaced", i), func(t *testing.T) { w.replace(t, p, 0, 0) })
			}
		})
	}
}

func newWorld(t *testing.T, cfg cluster.Config, nodes int) *world {
	t.Helper()
	netns.Up(t, "10.79.0.0/16")
	dir := suite.Folder(t, "fleet")
	cfg.Dir, cfg.APIServerArgs = dir, append(cfg.APIServerArgs, "--advertise-address=10.79.0.1")
	w := &world{Cluster: suite.Start(t, cfg), nodes: nodes}
	t.Logf("commit %s", suite.Commit(t))
	w.bin = suite.Build(t, filepath.Join(dir, "bin"))
	w.look(t, 0)
	w.furnish(t)
	w.front = cluster.Endpoint{URL: fmt.Sprintf("https://127.0.0.1:%d", frontPort), CAFile: w.PKI.Serving.CertFile}
	w.point(t, w.servers()...)
	w.settle(t)
	var clients []*http.Client // each keeps one connection over HTTP/2
	for i := range 10 {
		clients = append(clients, suite.Client(t, w.front, []cluster.Credentials{w.Admin(), w.StaticToken("admin")}[i/5]))
	}
	w.load = newLoad(clients, w.front.URL)
	for i := range 10 {
		c := suite.Client(t, w.front, w.Admin())
		if i%2 == 1 {
			c.Transport.(*http.Transport).TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{} // HTTP/1.1
		}
		c.Timeout = 0 // watches last
		w.watchers = append(w.watchers, c)
	}
	return w
}

func (w *world) servers() (all []cluster.Endpoint) {
	for i := range w.APIServers {
		all = append(all, w.EndpointOf(i))
	}
	return all
}

func (w *world) look(t *testing.T, i int) {
	t.Helper()
	w.core = must.Get(kubernetes.NewForConfig(w.EndpointOf(i).RESTConfig(w.Admin())))(t)
}

func (w *world) furnish(t *testing.T) {
	t.Helper()
	const namespace = "fleet"
	must.Get(w.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))(t)
	for i := range objects {
		must.Get(w.core.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%d", i)}, Data: map[string]string{"payload": payload},
		}, metav1.CreateOptions{}))(t)
	}
}

// replace stops p and restarts it under load, while the other kube-apiserver runs. It returns how
// many requests failed, and fails the test if they are more than most.
func (w *world) replace(t *testing.T, p *cluster.Part, other, most int) (failed int) {
	t.Helper()
	w.look(t, other)
	before := w.steady(t)
	ends := map[*volley.Watch]func(){}
	for _, c := range w.watchers {
		one := &volley.Watch{Client: c, URL: w.front.URL + path + "?watch=1&resourceVersion=0"}
		ends[one] = must.Run(t, func(ctx context.Context) error { one.Run(ctx); return ctx.Err() })
	}
	w.load.Start(t)
	<-time.After(calm)
	begun := time.Now()
	must.Do(t, p.Stop(draining))
	ended := time.Since(begun)
	<-time.After(calm)
	must.Do(t, p.Restart(t.Context()))
	back := time.Since(begun)
	<-time.After(calm)
	t.Logf("stopped at %s, exited %s later, ready again %s later", begun.Format("15:04:05.000"), ended.Round(time.Millisecond), back.Round(time.Millisecond))
	shots, away := w.load.Stop(), 0
	for _, s := range shots {
		away += min(s.Repeated, 1)
	}
	t.Logf("%d requests were turned away by kube-apiserver", away)
	failed = volley.Judge(t, shots, most, func(s *volley.Shot) bool { return s.Code != http.StatusOK || s.Err != nil || s.Took > latest })
	for one, end := range ends {
		end()
		for _, e := range one.Ends() {
			if e.Rest > 0 {
				t.Errorf("a watch was cut in the middle of an event: %+v", e)
			}
		}
		if one.Events() == 0 {
			t.Error("a watch received no events")
		}
	}
	w.unmoved(t, before)
	return failed
}
