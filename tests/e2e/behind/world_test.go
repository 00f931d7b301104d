//go:build e2e

package behind

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applydiscoveryv1 "k8s.io/client-go/applyconfigurations/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	aggregatorv1 "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// controlPlane is in the namespace of the tests; Fairleads and extension servers are in the namespace pods. The control
// plane reaches Fairleads at 10.81.0.0/24, and nobody at 10.80.0.0/16, where the extension servers are.
const controlPlane = "10.79.0.1"

var fairleads = []string{"10.81.0.2", "10.81.0.3"}

// world is a cluster whose control plane does not reach pods, but Fairlead does, as deploy/overlays/behind installs it.
type world struct {
	*cluster.Cluster
	dir, bin string
	kubectl  kubectl.User // of an administrator

	fronts  []*cluster.Front
	samples []*cluster.Part
	core    kubernetes.Interface
	objects aggregatorv1.APIServiceInterface
	admin   *http.Client
	token   string // of an administrator, for whom asks Fairlead itself
}

func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Up(t, "10.79.0.0/16")
	netns.Hide(t, "/run/netns")
	for _, command := range []string{
		"netns add pods", "link add plane type veth peer name pods", "link set pods netns pods",
		"addr add 10.81.0.1/24 dev plane", "link set plane up",
		"-n pods link set lo up", "-n pods addr add 10.81.0.2/24 dev pods", "-n pods addr add 10.81.0.3/24 dev pods", "-n pods link set pods up",
		"-n pods route add local 10.80.0.0/16 dev lo", "-n pods route add default via 10.81.0.1",
	} {
		netns.IP(t, command)
	}
	dir := suite.Folder(t, "behind")
	for _, tool := range []string{"sample-apiserver", "test-adapter", "metrics-server", "kubectl"} {
		suite.Tool(t, tool) // built before the time limits start
	}
	w := &world{
		dir: dir, bin: suite.Build(t, dir, "cmd/kubectl-fairlead"),
		Cluster: suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{"--bind-address=" + controlPlane, "--enable-aggregator-routing=true"}}),
	}
	w.kubectl = kubectl.As(t, w.Endpoint(), w.Admin())
	rc := w.Endpoint().RESTConfig(w.Admin())
	w.core, w.objects = must.Get(kubernetes.NewForConfig(rc))(t), must.Get(clientset.NewForConfig(rc))(t).ApiregistrationV1().APIServices()
	w.admin = suite.Client(t, w.Endpoint(), w.Admin())
	w.succeed(t, "init", "--serving-names=fairlead.kube-system.svc,"+strings.Join(fairleads, ","))
	w.succeed(t, "init", "--append-authentication-configmap")
	w.service(t, "fairlead", fairleads...)
	w.service(t, "down", "10.81.0.9")
	w.service(t, "nobody")
	kubeconfig := must.Get(w.Account(t.Context(), w.Endpoint(), "../../../deploy", "behind"))(t)
	w.token = w.StaticToken("admin").Token
	for i := range fairleads {
		w.fronts = append(w.fronts, w.start(t, i, kubeconfig))
	}
	return w
}

// inPods returns a script that runs a program in the namespace pods.
func (w *world) inPods(t *testing.T, path string) string {
	t.Helper()
	script := filepath.Join(w.dir, "pods-"+filepath.Base(path))
	must.Do(t, os.WriteFile(script, []byte(fmt.Sprintf("#!/bin/sh\nexec ip netns exec pods %s \"$@\"\n", path)), 0o700))
	return script
}

func (w *world) service(t *testing.T, name string, addresses ...string) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	ports := []corev1.ServicePort{{Name: "https", Port: 443}}
	must.Get(w.core.CoreV1().Services("kube-system").Create(t.Context(), &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: ports}}, metav1.CreateOptions{}))(t)
	w.publish(t, name, addresses...)
}

// publish makes these the endpoints of a Service.
func (w *world) publish(t *testing.T, name string, addresses ...string) {
	t.Helper()
	slice := applydiscoveryv1.EndpointSlice(name, "kube-system").WithLabels(map[string]string{discoveryv1.LabelServiceName: name}).
		WithAddressType(discoveryv1.AddressTypeIPv4).WithPorts(applydiscoveryv1.EndpointPort().WithName("https").WithPort(6443))
	for _, a := range addresses {
		slice.WithEndpoints(applydiscoveryv1.Endpoint().WithAddresses(a))
	}
	must.Get(w.core.DiscoveryV1().EndpointSlices("kube-system").Apply(t.Context(), slice, metav1.ApplyOptions{FieldManager: "test", Force: true}))(t)
}

// start starts a replica with the overlay's arguments, as the kubelet does.
func (w *world) start(t *testing.T, i int, kubeconfig string) *cluster.Front {
	t.Helper()
	mounted := filepath.Join(w.dir, fmt.Sprint("mounted-", i))
	for folder, name := range map[string]string{"serving": "fairlead-serving", "front-proxy-client": "fairlead-front-proxy-client"} {
		must.Do(t, os.MkdirAll(filepath.Join(mounted, folder), 0o700))
		secret := must.Get(w.core.CoreV1().Secrets("kube-system").Get(t.Context(), name, metav1.GetOptions{}))(t)
		for key, value := range secret.Data {
			suite.Put(t, filepath.Join(mounted, folder, key), value)
		}
	}
	a := w.kubectl.Try(t, "", "kustomize", "../../../deploy/overlays/behind")
	args := manifests.Arguments(manifests.Serve(a.Out), fairleads[i], "/etc/fairlead", mounted)
	must.Be(t, len(args) >= 8, "%q of the overlay\n%s", args, a.Errs)
	ca := filepath.Join(mounted, "serving/ca.crt")
	f := &cluster.Front{
		Endpoint: cluster.Endpoint{URL: "https://" + fairleads[i] + ":6443", CAFile: ca},
		Admin:    cluster.Endpoint{URL: "https://" + fairleads[i] + ":6444", CAFile: ca},
	}
	f.Part = must.Get(w.Run(t.Context(), cluster.Command{
		Name: fmt.Sprint("fairlead-", i), Path: w.inPods(t, w.bin), Ready: f.Admin.Serves("/readyz", cluster.Credentials{}),
		Args: append(args, "--bind-address="+fairleads[i], "--kubeconfig="+kubeconfig, "--shutdown-delay-duration=3s"), // 15 s in the overlay
	}))(t)
	return f
}

// run runs a command of kubectl fairlead against the cluster.
func (w *world) run(t *testing.T, words ...string) suite.Answer {
	t.Helper()
	return suite.Run(t, w.command(t.Context(), words...), "")
}

func (w *world) succeed(t *testing.T, words ...string) string {
	t.Helper()
	a := w.run(t, words...)
	must.Be(t, a.Code == 0, "%v: exit code %d\n%s%s", words, a.Code, a.Out, a.Errs)
	return a.Out
}

func (w *world) apply(t *testing.T, text string) {
	t.Helper()
	w.kubectl.Feed(t, text, "apply", "-f", "-")
}

// autoscale makes a Deployment of one replica and a HorizontalPodAutoscaler that has three of it: by the metric
// my-external-metric of the adapter.
func (w *world) autoscale(t *testing.T) {
	t.Helper()
	w.apply(t, `
{apiVersion: v1, kind: Namespace, metadata: {name: scaled}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: scaled, name: web}
spec: {replicas: 1, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: web}]}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {namespace: scaled, name: web}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, minReplicas: 1, maxReplicas: 3,
  metrics: [{type: External, external: {metric: {name: my-external-metric}, target: {type: AverageValue, averageValue: "1"}}}]}
`)
}
