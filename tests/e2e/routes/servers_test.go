//go:build e2e

package routes

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

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
	address := free(t)
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "prometheus", Path: must.Get(exec.LookPath("prometheus"))(t),
		Args:  []string{"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(w.dir, "prometheus"), "--web.listen-address=" + address},
		Ready: cluster.Endpoint{URL: "http://" + address}.Serves("/-/ready", cluster.Credentials{}),
	}))(t)
	return "http://" + address
}

// free is an address on loopback that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	must.Do(t, l.Close())
	return l.Addr().String()
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
	suite.Tool(t, "keda-adapter") // built before the time limits start
	operator := suite.Tool(t, "keda-operator")
	w.apply(t, "", filepath.Join(source(t), "config/crd/bases"))
	certs := filepath.Join(w.dir, "keda")
	must.Do(t, os.Mkdir(certs, 0o700))
	must.Get2(w.PKI.Serving.CA.Issue(pki.Leaf{CommonName: "keda", Names: []string{"127.0.0.1"}}).WriteFiles(certs, "tls"))(t)
	suite.Put(t, filepath.Join(certs, "ca.crt"), w.PKI.Serving.CA.PEM())
	kubeconfig := must.Get(w.Kubeconfig(w.Endpoint(), "keda-operator", cluster.Leaf{User: "keda-operator", Groups: []string{"system:masters"}}))(t)
	metrics, health := free(t), free(t)
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "keda-operator", Path: operator, Env: environment(kubeconfig),
		Args:  []string{"--cert-dir=" + certs, "--metrics-bind-address=0", "--metrics-service-bind-address=" + metrics, "--health-probe-bind-address=" + health},
		Ready: cluster.Endpoint{URL: "http://" + health}.Serves("/readyz", cluster.Credentials{}),
	}))(t)
	return w.serve(t, "keda-adapter", &cluster.Backend{Namespace: "keda", Service: "keda-metrics-apiserver"}, "--cert-dir="+certs, "--metrics-service-address="+metrics, "--port=0")
}

// environment is what KEDA reads of it. Others of the custom-metrics library read nothing.
func environment(kubeconfig string) []string {
	return []string{"KUBECONFIG=" + kubeconfig, "WATCH_NAMESPACE=", "KEDA_CLUSTER_OBJECT_NAMESPACE=keda", "POD_NAMESPACE=keda"}
}

// source is the folder of KEDA's source.
func source(t *testing.T) string {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/kedacore/keda/v2")
	download.Dir = "../tools/keda"
	var module struct{ Dir string }
	must.Do(t, json.Unmarshal(must.Get(download.Output())(t), &module))
	return module.Dir
}

// get returns the answer to a GET through Fairlead.
func (w *world) get(t *testing.T, path string) ask.Reply {
	t.Helper()
	return must.Get(ask.Do(t.Context(), w.admin, http.MethodGet, w.front.Endpoint.URL+path, nil, ""))(t)
}
