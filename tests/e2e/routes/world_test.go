//go:build e2e

package routes

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Group-versions with several backends.
const (
	external = "external.metrics.k8s.io/v1beta1"
	widgets  = "widgets.example.com/v1"
)

// world is a cluster with a Fairlead in front, whose policy a test replaces.
type world struct {
	*cluster.Cluster
	dir, policy string

	front   *cluster.Front
	core    kubernetes.Interface // directly at kube-apiserver
	admin   *http.Client         // through Fairlead
	kubectl kubectl.User         // through Fairlead
}

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Up(t)
	dir := suite.Folder(t, "routes")
	w := &world{dir: dir, policy: filepath.Join(dir, "policy.yaml")}
	fairlead := suite.Build(t, dir, "cmd/kubectl-fairlead")
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{"--advertise-address=10.81.0.1"}})
	w.core = must.Get(kubernetes.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))(t)
	w.routes(t, external)
	w.front = must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: fairlead, Args: []string{"--policy=" + w.policy}}))(t)
	w.kubectl = kubectl.As(t, w.front.Endpoint, w.Admin())
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

type server struct {
	*cluster.Part
	backend *cluster.Backend
}

// serve starts an extension server with a Service. Only with group-versions it gets APIServices.
func (w *world) serve(t *testing.T, program string, b *cluster.Backend, more ...string) server {
	t.Helper()
	suite.Tool(t, program) // built before the time limit starts
	return server{must.Get(w.StartExtension(t.Context(), program, b, more...))(t), b}
}

// queues are what both metrics servers scale by.
type queues struct{ orders, mails atomic.Int32 }

// prometheus starts a Prometheus that reads the queues' lengths, and returns its URL.
func (w *world) prometheus(t *testing.T, q *queues) (url string) {
	t.Helper()
	shop := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(rw, "orders_waiting{namespace=\"shop\"} %d\nmails_waiting{namespace=\"shop\"} %d\n", q.orders.Load(), q.mails.Load())
	}))
	t.Cleanup(shop.Close)
	file := filepath.Join(w.dir, "prometheus.yaml")
	must.Do(t, os.WriteFile(file, fmt.Appendf(nil, "scrape_configs: [{job_name: shop, scrape_interval: 1s, honor_labels: true, static_configs: [{targets: [%q]}]}]", shop.Listener.Addr()), 0o600))
	address := fmt.Sprint("127.0.0.1:", alone.Ports(t, 1)[0])
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "prometheus", Path: must.Get(exec.LookPath("prometheus"))(t),
		Args:  []string{"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(w.dir, "prometheus"), "--web.listen-address=" + address},
		Ready: cluster.Endpoint{URL: "http://" + address}.Serves("/-/ready", cluster.Credentials{}),
	}))(t)
	return "http://" + address
}

// adapter starts prometheus-adapter, the APIService's own backend.
func (w *world) adapter(t *testing.T, prometheus string) server {
	t.Helper()
	rules := filepath.Join(w.dir, "adapter.yaml")
	must.Do(t, os.WriteFile(rules, []byte(`
externalRules:
- seriesQuery: '{__name__="orders_waiting"}'
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>})
  resources: {overrides: {namespace: {resource: namespace}}}
`), 0o600))
	return w.serve(t, "prometheus-adapter", &cluster.Backend{Namespace: "monitoring", Service: "prometheus-adapter", GroupVersions: []string{external}},
		"--prometheus-url="+prometheus, "--config="+rules, "--metrics-relist-interval=1s", "--metrics-max-age=1m")
}

// keda starts KEDA's operator and its metrics server, which has a Service and no APIService.
func (w *world) keda(t *testing.T) server {
	t.Helper()
	operator := suite.Tool(t, "keda-operator")
	w.kubectl.Run(t, "apply", "--server-side", "-f", filepath.Join(source(t), "config/crd/bases"))
	certs := filepath.Join(w.dir, "keda")
	must.Do(t, os.Mkdir(certs, 0o700))
	must.Get2(w.PKI.Serving.CA.Issue(pki.Leaf{CommonName: "keda", Names: []string{"127.0.0.1"}}).WriteFiles(certs, "tls"))(t)
	suite.Put(t, filepath.Join(certs, "ca.crt"), w.PKI.Serving.CA.PEM())
	kubeconfig := must.Get(w.Kubeconfig(w.Endpoint(), "keda-operator", cluster.Leaf{User: "keda-operator", Groups: []string{"system:masters"}}))(t)
	ports := alone.Ports(t, 2)
	metrics, health := fmt.Sprint("127.0.0.1:", ports[0]), fmt.Sprint("127.0.0.1:", ports[1])
	for name, value := range map[string]string{"WATCH_NAMESPACE": "", "KEDA_CLUSTER_OBJECT_NAMESPACE": "keda", "POD_NAMESPACE": "keda"} {
		t.Setenv(name, value) // which KEDA reads of it
	}
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "keda-operator", Path: operator, Env: []string{"KUBECONFIG=" + kubeconfig},
		Args:  []string{"--cert-dir=" + certs, "--metrics-bind-address=0", "--metrics-service-bind-address=" + metrics, "--health-probe-bind-address=" + health},
		Ready: cluster.Endpoint{URL: "http://" + health}.Serves("/readyz", cluster.Credentials{}),
	}))(t)
	return w.serve(t, "keda-adapter", &cluster.Backend{Namespace: "keda", Service: "keda-metrics-apiserver"}, "--cert-dir="+certs, "--metrics-service-address="+metrics, "--port=0")
}

func source(t *testing.T) string {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/kedacore/keda/v2")
	download.Dir = "../../tools/keda"
	var module struct{ Dir string }
	must.Do(t, json.Unmarshal(must.Get(download.Output())(t), &module))
	return module.Dir
}
