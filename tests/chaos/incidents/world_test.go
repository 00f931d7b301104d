//go:build e2e

package incidents

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

const long = 9 * 24 * time.Hour // a validity for which no alert fires, and less than that of a CA

// world is what all rows share: a cluster with one healthy extension server.
type world struct {
	*cluster.Cluster
	dir         string
	fairlead    string // executables
	plugin      string
	kubectl     kubectl.User // of an administrator, directly at kube-apiserver
	core        kubernetes.Interface
	fronts      cluster.Pair // the proxy client certificate
	ca          *pki.CA      // of extension servers
	jane        cluster.Credentials
	scrapes     cluster.Credentials // Prometheus'
	rules       string              // the shipped ones, for promtool
	inhibitions []inhibition
}

func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Up(t, "10.79.0.0/16")
	dir := suite.Folder(t, "incidents")
	w := &world{dir: dir, fairlead: suite.Build(t, dir, "cmd/kubectl-fairlead"), plugin: filepath.Join(dir, "kubectl-fairlead"), ca: pki.NewCA("extension-ca"), inhibitions: inhibitions(t)}
	var object struct{ Spec any }
	must.Do(t, yaml.Unmarshal(must.Get(os.ReadFile("../../../deploy/components/monitoring/prometheusrule.yaml"))(t), &object))
	w.rules = string(must.Get(yaml.Marshal(object.Spec))(t))
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{"--advertise-address=10.79.0.1"}})
	w.prepare(t)
	for _, more := range [][]string{nil, {"--bind-address=" + filteredAddress}} { // killable and filterable
		must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], more...))
	}
	for i := range w.APIServers { // their certificates are valid for a day only; they follow the files
		w.lasting(t, i)
	}
	well := w.extension(t, "well", "")
	file, _ := must.Get2(w.ca.WriteFiles(w.dir, "extension-ca"))(t)
	must.Do(t, w.Register(t.Context(), cluster.Backend{Namespace: "incidents", Service: "well", Port: well.Port(), CAFile: file, GroupVersions: []string{"well.example.com/v1"}}))
	return w
}

// prepare makes what all Fairleads of a cluster need.
func (w *world) prepare(t *testing.T) {
	t.Helper()
	w.kubectl = kubectl.As(t, w.Endpoint(), w.Admin())
	w.core = must.Get(kubernetes.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))(t)
	w.fronts = must.Get(w.PKI.FrontProxy.Issue("front-proxy-long", cluster.Leaf{User: "front-proxy-client", NotAfter: inLong()}))(t)
	w.kubectl.Run(t, "apply", "-k", "../../../deploy/base")
	w.kubectl.Feed(t, users, "apply", "-f", "-")
	w.scrapes = cluster.Credentials{Token: suite.Token(t, w.core, "incidents", "prometheus")}
	w.jane = cluster.Credentials{Pair: must.Get(w.PKI.Client.Issue("jane", cluster.Leaf{User: "jane", NotAfter: inLong()}))(t)}
}

// lasting replaces the serving certificate of a kube-apiserver, for which an alert would fire.
func (w *world) lasting(t *testing.T, i int) {
	t.Helper()
	host := must.Get(url.Parse(w.EndpointOf(i).URL))(t).Hostname()
	must.Get(w.PKI.Serving.Issue(w.APIServers[i].Name(), cluster.Leaf{User: "kube-apiserver", Names: []string{host, "localhost"}, NotAfter: inLong()}))(t)
}

func run(t *testing.T, name string, args ...string) suite.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return suite.Run(t, exec.CommandContext(ctx, name, args...), "")
}

// serve starts a Fairlead with an account of that name.
func (w *world) serve(t *testing.T, name string, more ...string) *cluster.Front {
	t.Helper()
	return w.serveAt(t, w.Endpoint(), name, more...)
}

// serveAt starts a Fairlead whose local apiserver is e.
func (w *world) serveAt(t *testing.T, e cluster.Endpoint, name string, more ...string) *cluster.Front {
	t.Helper()
	w.account(t, name)
	return w.start(t, name, "", append([]string{"--kubeconfig=" + w.kubeconfig(t, e, name)}, more...)...)
}

// start starts a Fairlead with certificates that are not about to expire: with a registry and without a local
// apiserver, unless that is empty.
func (w *world) start(t *testing.T, name, registry string, more ...string) *cluster.Front {
	t.Helper()
	serving := must.Get(w.PKI.Serving.Issue("serving-"+name, cluster.Leaf{User: name, Names: []string{"127.0.0.1", "localhost"}, NotAfter: inLong()}))(t)
	args := slices.Concat([]string{"--tls-cert-file=" + serving.CertFile, "--tls-private-key-file=" + serving.KeyFile, "--proxy-client-cert-file=" + w.fronts.CertFile, "--proxy-client-key-file=" + w.fronts.KeyFile}, more)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f := must.Get(w.StartFairlead(ctx, cluster.Fairlead{Path: w.fairlead, Name: "fairlead-" + name, Args: args, Registry: registry, Ready: "/livez"}))(t) // a row may restart it broken
	ready := f.Admin.Serves("/readyz", cluster.Credentials{})
	suite.Eventually(t, time.Minute, "ready", func() (bool, string) {
		err := ready(t.Context())
		return err == nil, fmt.Sprint(err)
	})
	return f
}

func widgets(name string) string {
	return "/apis/" + name + ".example.com/v1/namespaces/default/widgets"
}

// load sends requests of an ordinary user, as in any cluster, until the test ends.
func (w *world) load(t *testing.T, front *cluster.Front, paths ...string) {
	t.Helper()
	client := suite.Client(t, front.Endpoint, w.jane)
	request := func(i int) (method, url, body string) {
		return http.MethodGet, front.Endpoint.URL + paths[i%len(paths)], ""
	}
	(&volley.Load{Every: time.Second / 4, Clients: []*http.Client{client}, Make: request}).Start(t)
}

// users are an ordinary one, and Prometheus.
const users = `
{apiVersion: v1, kind: Namespace, metadata: {name: incidents}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: incidents, name: prometheus}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: incidents-prometheus},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:fairlead-metrics"}, subjects: [{kind: ServiceAccount, namespace: incidents, name: prometheus}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: incidents-jane}, rules: [{apiGroups: ["*"], resources: [widgets], verbs: [get, list, watch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: incidents-jane},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: incidents-jane}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}]}
`

// renamed makes copies of the shipped account and its rights.
const renamed = `
resources: [%s]
nameSuffix: -%s
patches:
- target: {kind: Service|FlowSchema|PriorityLevelConfiguration|ValidatingAdmission.*}
  patch: '{$patch: delete, apiVersion: v1, kind: any, metadata: {name: any}}'
`

// account makes a copy of Fairlead's ServiceAccount with the shipped rights, or restores it.
func (w *world) account(t *testing.T, name string) {
	t.Helper()
	dir := t.TempDir()
	base := must.Get(filepath.Rel(dir, must.Get(filepath.Abs("../../../deploy/base"))(t)))(t)
	suite.Put(t, filepath.Join(dir, "kustomization.yaml"), fmt.Sprintf(renamed, base, name))
	w.kubectl.Run(t, "apply", "-k", dir)
}

func (w *world) kubeconfig(t *testing.T, e cluster.Endpoint, name string) string {
	t.Helper()
	file := filepath.Join(w.Dir(), "account-"+name+".kubeconfig")
	must.Do(t, e.WriteKubeconfig(file, cluster.Credentials{Token: suite.Token(t, w.core, "kube-system", "fairlead-"+name)}))
	return file
}
