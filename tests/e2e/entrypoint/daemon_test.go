//go:build e2e

package entrypoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/kubelet"
)

// sample runs Kubernetes' sample extension server at an address of its own.
func (w *world) sample(t *testing.T) {
	t.Helper()
	b := cluster.Backend{Namespace: "wardle", Service: "api", CAFile: w.PKI.Serving.CertFile, GroupVersions: []string{"wardle.example.com/v1beta1"}, Addresses: []string{extension6}}
	_, args, err := w.ExtensionArgs(&b)
	must.Do(t, err)
	must.Get(w.Run(t.Context(), cluster.Command{
		Name: "sample-apiserver", Path: suite.Tool(t, "sample-apiserver"),
		Args:  append(args, "--bind-address="+extension6, "--etcd-servers="+w.EtcdURLs()[0], "--etcd-prefix=/registry/wardle.example.com"),
		Ready: cluster.Listens(fmt.Sprintf("[%s]:%d", extension6, b.Port)),
	}))(t)
	must.Do(t, w.Register(t.Context(), b))
}

// node joins a stub kubelet.
func (w *world) node(t *testing.T) *kubelet.Kubelet {
	t.Helper()
	serving := must.Get(w.PKI.Serving.Issue("kubelet", cluster.Leaf{User: "system:node:worker", Names: []string{worker}}))(t)
	pair := must.Get(tls.LoadX509KeyPair(serving.CertFile, serving.KeyFile))(t)
	k := must.Get(kubelet.New(kubelet.Config{Address: worker, Certificate: pair, ClientCAs: suite.Pool(t, w.PKI.Client.CertFile), Dir: t.TempDir()}))(t)
	t.Cleanup(k.Close)
	must.Do(t, k.Join(t.Context(), w.core, "worker"))
	return k
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
