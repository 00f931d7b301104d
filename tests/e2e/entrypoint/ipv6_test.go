//go:build e2e

package entrypoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// The machines of a cluster without IPv4: two control-plane nodes, another node, an extension
// server, and the cluster address of the Service kubernetes.
const node1, node2, worker, extension6, clusterIP6 = "fd00:79::1", "fd00:79::2", "fd00:79::3", "fd00:79::4", "fd00:96::1"

// A cluster without IPv4 is served: etcd, kube-apiserver, an extension server and a kubelet are on
// IPv6, and Fairlead runs with the command line and the credential of the shipped DaemonSet.
func TestIPv6(t *testing.T) {
	netns.Up(t)
	for _, a := range []string{node1, node2, worker, extension6, clusterIP6} {
		netns.IP(t, "address add "+a+"/64 dev lo nodad")
	}
	netns.Hide(t, "/run/secrets")
	netns.Hide(t, "/etc/kubernetes")
	dir := suite.Folder(t, "ipv6")
	w := &world{fairlead: suite.Build(t, filepath.Join(dir, "bin"), "cmd/kubectl-fairlead")}
	w.Cluster = suite.Start(t, cluster.Config{Dir: dir, Loopback: "::1", APIServerArgs: []string{
		"--bind-address=" + node1, "--advertise-address=" + node1, "--secure-port=6443", "--service-cluster-ip-range=fd00:96::/112", "--endpoint-reconciler-type=lease",
	}})
	w.core = must.Get(kubernetes.NewForConfig(w.Endpoint().RESTConfig(w.Admin())))(t)
	b := cluster.Backend{Namespace: "wardle", Service: "api", GroupVersions: []string{"wardle.example.com/v1beta1"}, Addresses: []string{extension6}}
	must.Get(w.StartExtension(t.Context(), "sample-apiserver", &b))(t)
	k := must.Get(w.StartNode(t.Context(), w.Endpoint(), "worker", worker))(t)

	deploy := w.deploy(t)
	must.Get(w.Account(t.Context(), w.Endpoint(), deploy, "entrypoint"))(t)
	w.pod(t)
	w.serviceProxy(t, clusterIP6)
	door, one := w.daemon(t, deploy, "control-plane", node1)
	admin := kubectl.As(t, one, w.Admin())
	t.Run("kubectl", func(t *testing.T) { testKubectl(t, admin) })
	t.Run("exec", func(t *testing.T) {
		must.Get(w.core.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
		must.Get(k.Run(t.Context(), w.core, "default", "buoy"))(t)
		for _, websockets := range []string{"true", "false"} {
			admin.Env = []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + websockets}
			check.Same(t, "ahoy\n", admin.Run(t, "exec", "buoy", "--", "echo", "ahoy"), "what exec prints")
		}
	})
	t.Run("followed", func(t *testing.T) {
		f := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{
			Path: w.fairlead, Address: node2, Args: []string{"--bind-address=::", "--local-apiservers-from=endpointslice", "--local-apiserver=https://" + node1 + ":6443"},
		}))(t)
		must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], "--bind-address="+node2, "--advertise-address="+node2))
		w.publishes(t, 15*time.Second, "["+node1+"]:6443", "["+node2+"]:6443")
		w.servers(t, f, "["+node1+"]:6443", "["+node2+"]:6443")
		f.Part.Kill()
	})

	// By docs/operations.md: kube-apiservers stop publishing themselves, and Fairlead does.
	for _, part := range []*cluster.Part{door, w.APIServers[0], w.APIServers[1]} {
		part.Kill()
	}
	must.Do(t, w.AddAPIServer(t.Context(), w.EtcdURLs()[0], "--bind-address="+node2, "--advertise-address="+node2, "--endpoint-reconciler-type=none"))
	w.core = must.Get(kubernetes.NewForConfig(w.EndpointOf(2).RESTConfig(w.Admin())))(t)
	// No host's name resolves here, by which it would find others: TestLeased has names.
	_, two := w.daemon(t, deploy, "entrypoint", node2, "--local-apiservers-from=")
	t.Run("entrypoint", func(t *testing.T) {
		w.publishes(t, 15*time.Second, "["+node2+"]:8443")
		check.Same(t, "IPv6", kubectl.As(t, two, w.Admin()).Run(t, "get", "endpointslice", "kubernetes", "-o", "jsonpath={.addressType}"), "what the slice is of")
		pod := kubectl.As(t, cluster.Endpoint{URL: "https://[" + clusterIP6 + "]", CAFile: two.CAFile}, w.Admin())
		pod.Run(t, "get", "--raw", "/fairlead/status")
		pod.Run(t, "get", "flunders")
	})
	t.Run("replicas", func(t *testing.T) {
		admin := kubectl.As(t, two, w.Admin())
		admin.Feed(t, fmt.Sprintf(adminSlice, node2), "create", "-f", "-")
		suite.Eventually(t, 20*time.Second, "all is well", func() (bool, string) { // checks are asked once a second
			a := suite.Run(t, exec.CommandContext(t.Context(), filepath.Join(filepath.Dir(w.fairlead), "kubectl-fairlead"), "status", "--replicas", "--kubeconfig="+admin.Kubeconfig), "")
			return a.Code == 0 && strings.Contains(a.Out, "["+node2+"]:8444"), fmt.Sprintf("exit code %d:\n%s%s", a.Code, a.Out, a.Errs)
		})
	})
}

// adminSlice is what Kubernetes' controller makes for the Service fairlead-admin.
const adminSlice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: kube-system, name: fairlead-admin, labels: {kubernetes.io/service-name: fairlead-admin}}
addressType: IPv6
ports: [{name: admin, port: 8444}]
endpoints: [{addresses: ["%s"]}]
`

// testKubectl uses an object of the extension server: discovery, writes, and a watch of them.
func testKubectl(t *testing.T, admin kubectl.User) {
	admin.Soon(t, "the extension server", "get", "flunders")
	sees := admin.Watch(t, "flunders")
	admin.Feed(t, "{apiVersion: wardle.example.com/v1beta1, kind: Flunder, metadata: {name: six, namespace: default}}", "create", "-f", "-")
	sees("ADDED", "six")
	admin.Run(t, "label", "flunder", "six", "seen=yes")
	sees("MODIFIED", "six")
	admin.Run(t, "delete", "flunder", "six")
	sees("DELETED", "six")
}

// pod puts what a pod of Fairlead's sees at its places: kubeadm's files and the ServiceAccount's
// token. It needs no kubeconfig.
func (w *world) pod(t *testing.T) {
	t.Helper()
	const pki, account = "/etc/kubernetes/pki/", "/var/run/secrets/kubernetes.io/serviceaccount/"
	must.Do(t, errors.Join(os.MkdirAll(pki, 0o700), os.MkdirAll(account, 0o700)))
	serving := must.Get(w.PKI.Serving.Issue("nodes", cluster.Leaf{User: "kube-apiserver", Names: []string{node1, node2, clusterIP6, "kubernetes.default.svc"}}))(t)
	for file, from := range map[string]string{
		pki + "apiserver.crt": serving.CertFile, pki + "apiserver.key": serving.KeyFile, pki + "ca.crt": w.PKI.Client.CertFile, pki + "front-proxy-ca.crt": w.PKI.FrontProxy.CertFile,
		pki + "front-proxy-client.crt": w.PKI.FrontProxyPair.CertFile, pki + "front-proxy-client.key": w.PKI.FrontProxyPair.KeyFile, account + "ca.crt": w.PKI.Serving.CertFile,
	} {
		suite.Put(t, file, must.Get(os.ReadFile(from))(t))
	}
	suite.Put(t, account+"token", suite.Token(t, w.core, "kube-system", "fairlead"))
}

// daemon runs the container of a DaemonSet of an overlay on a node, as the kubelet does, with more arguments.
func (w *world) daemon(t *testing.T, deploy, overlay, node string, more ...string) (*cluster.Part, cluster.Endpoint) {
	t.Helper()
	rendered := string(must.Get(exec.CommandContext(t.Context(), suite.Tool(t, "kubectl"), "kustomize", filepath.Join(deploy, "overlays", overlay)).Output())(t))
	args := manifests.Arguments(manifests.Serve(rendered), node)
	admin := cluster.Endpoint{URL: "https://[" + node + "]:8444", CAFile: w.PKI.Serving.CertFile}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	part := must.Get(w.Run(ctx, cluster.Command{
		Name: "daemon-" + overlay, Path: w.fairlead, Args: append(args, more...), Env: []string{"KUBERNETES_SERVICE_HOST=" + clusterIP6, "KUBERNETES_SERVICE_PORT=443"},
		Ready: admin.Serves("/readyz", cluster.Credentials{}),
	}))(t)
	return part, cluster.Endpoint{URL: "https://[" + node + "]:8443", CAFile: admin.CAFile}
}
