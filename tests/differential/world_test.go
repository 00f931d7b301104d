//go:build e2e

package differential

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// world is a cluster with Fairlead beside its kube-apiserver.
type world struct {
	*cluster.Cluster
	front    *cluster.Front
	start    func(lane string) (*cluster.Front, error) // starts another Fairlead
	clients  map[string]*http.Client                   // :: URL of a server → client of an administrator
	core     kubernetes.Interface
	services aggregator.Interface
}

func newWorld(t *testing.T, args ...string) *world {
	t.Helper()
	dir := suite.Folder(t, "differential")
	c, binary := suite.Start(t, cluster.Config{Dir: dir}), suite.Build(t, dir)
	w := &world{Cluster: c, clients: map[string]*http.Client{}}
	w.start = func(lane string) (*cluster.Front, error) {
		return c.StartFairlead(t.Context(), cluster.Fairlead{Path: binary, Name: "fairlead-" + lane, Args: append([]string{"--http2=" + strconv.FormatBool(lane == "h2")}, args...)})
	}
	w.front = must.Get(w.start("h2"))(t)
	rc := c.Endpoint().RESTConfig(c.Admin())
	w.core, w.services = kubernetes.NewForConfigOrDie(rc), aggregator.NewForConfigOrDie(rc)
	for _, e := range []cluster.Endpoint{c.Endpoint(), w.front.Endpoint} {
		w.clients[e.URL] = suite.Client(t, e, c.Admin())
	}
	return w
}

// define makes a CustomResourceDefinition.
func (w *world) define(t *testing.T, manifest string) {
	t.Helper()
	kubectl.As(t, w.Endpoint(), w.Admin()).Feed(t, manifest, "apply", "-f", "-")
}

// eachLane runs a test over each protocol that Fairlead offers to clients, in the same cluster.
func (w *world) eachLane(t *testing.T, f func(*testing.T, *world)) {
	t.Helper()
	front := must.Get(w.start("http1"))(t)
	other := *w
	other.front = front
	w.clients[front.Endpoint.URL] = suite.Client(t, front.Endpoint, w.Admin())
	t.Run("h2", func(t *testing.T) { f(t, w) })
	t.Run("http1", func(t *testing.T) { f(t, &other) })
}

func (w *world) ask(t *testing.T, e cluster.Endpoint, path string, header http.Header) ask.Reply {
	t.Helper()
	return w.send(t, http.MethodGet, e, path, header)
}

func (w *world) send(t *testing.T, method string, e cluster.Endpoint, path string, header http.Header) ask.Reply {
	t.Helper()
	return must.Get(ask.Do(t.Context(), w.clients[e.URL], method, e.URL+path, header, ""))(t)
}

// priority holds the priorities of an APIService.
type priority struct {
	group, version int32
}

// extend starts an extension server in this process and registers its group-versions, the keys of
// where. Its Service is an ExternalName that leads to this machine, because Kubernetes refuses
// loopback addresses in EndpointSlices.
func (w *world) extend(t *testing.T, name string, cfg extension.Config, where map[string]priority) *extension.Server {
	t.Helper()
	cfg.Names, cfg.GroupVersions = []string{name + ".backends.svc"}, slices.Collect(maps.Keys(where))
	s := extension.Start(t, cfg)
	port := int32(s.Port())
	w.namespace(t, "backends")
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: port}},
	}}
	must.Get(w.core.CoreV1().Services("backends").Create(t.Context(), service, metav1.CreateOptions{}))(t)
	for gv, at := range where {
		group, version, _ := strings.Cut(gv, "/")
		must.Get(w.services.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
			Spec: apiregistrationv1.APIServiceSpec{
				Service: &apiregistrationv1.ServiceReference{Namespace: "backends", Name: name, Port: &port}, Group: group, Version: version,
				CABundle: s.CA.PEM(), GroupPriorityMinimum: at.group, VersionPriority: at.version,
			},
		}, metav1.CreateOptions{}))(t)
	}
	return s
}

func (w *world) namespace(t *testing.T, name string) {
	t.Helper()
	_, err := w.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}
