package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

// raiseStandalone starts an extension server and two Fairleads over etcd, and returns what to try.
func raiseStandalone(ctx context.Context, c *cluster.Cluster, o options, stderr io.Writer) (text string, front *cluster.Front, err error) {
	defer try.Catch(&err)
	server := try.Get(extension.New(extension.Config{
		GroupVersions: []string{"widgets.example.com/v1"}, CA: c.PKI.Serving.CA, Objects: 3,
		RequestHeaderCA: c.PKI.FrontProxy.CA.Pool(), RejectWith: http.StatusUnauthorized,
	}))
	context.AfterFunc(ctx, server.Close)
	tell(stderr, "the extension server is ready")
	start, cancel := context.WithTimeout(ctx, 5*time.Minute) // they take a second or two, and more on busy cores
	defer cancel()
	one := try.Get(c.StartFairlead(start, cluster.Fairlead{Path: o.fairlead, Name: "fairlead-1", Port: free(o.port, stderr), AdminPort: free(o.adminPort, stderr), Registry: c.Registry(), Args: o.args}))
	two := try.Get(c.StartFairlead(start, cluster.Fairlead{Path: o.fairlead, Name: "fairlead-2", Registry: c.Registry(), Args: o.args}))
	try.Do(o.buildRest(ctx, one, stderr, "kubectl"))
	return try.Get(describeStandalone(ctx, c, o, server, one, two)), one, nil
}

// apiService is the manifest to apply. kube-aggregator's validation accepts a caBundle only
// together with a service; Fairlead does not look that up.
const apiService = `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1.widgets.example.com
  annotations:
    fairlead.dev/url: %s
spec:
  group: widgets.example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 100
  service: {namespace: standalone, name: widgets} # required with a caBundle, but not looked up
  caBundle: %s
`

// describeStandalone writes two kubeconfigs, a manifest and a link to kubectl. It says what to try.
func describeStandalone(ctx context.Context, c *cluster.Cluster, o options, server *extension.Server, one, two *cluster.Front) (string, error) {
	kubeconfig, manifest := filepath.Join(o.dir, "kubeconfig"), filepath.Join(o.dir, "apiservice.yaml")
	err1 := one.Endpoint.WriteKubeconfig(kubeconfig, c.Admin())
	err2 := two.Endpoint.WriteKubeconfig(kubeconfig+"-2", c.Admin())
	text := fmt.Sprintf(apiService, server.URL(), base64.StdEncoding.EncodeToString(c.PKI.Serving.CA.PEM()))
	err3 := os.WriteFile(manifest, []byte(text), 0o600)
	err4 := linkKubectl(ctx, o.dir)
	return fmt.Sprintf(`
Two Fairleads keep APIServices in etcd. There is no kube-apiserver.

  front doors  %s and %s
  admin ports  %s and %s   (health, metrics)
  etcd         %s
  kubeconfig   %s   (%[6]s-2: through the other Fairlead)
  logs         %s

Try:

  export KUBECONFIG="%[6]s" PATH="%[8]s:$PATH"
  kubectl apply -f "%[9]s"
  kubectl wait --for=condition=Available apiservice/v1.widgets.example.com
  kubectl get widgets                                   # served by the extension server
  kubectl --kubeconfig "%[6]s-2" get widgets   # through the other Fairlead
  kubectl --kubeconfig "%[6]s-2" get apiservices -w   # meanwhile delete it

Ctrl-C ends everything.
`, one.Endpoint.URL, two.Endpoint.URL, one.Admin.URL, two.Admin.URL, c.EtcdURLs()[0], kubeconfig, filepath.Join(c.Dir(), "*.log"), o.path(), manifest), errors.Join(err1, err2, err3, err4)
}

// createFlunders creates two objects through Fairlead, so that the first command shows some.
func createFlunders(ctx context.Context, rc *rest.Config) (err error) {
	defer try.Catch(&err)
	flunders := try.Get(dynamic.NewForConfig(rc)).Resource(schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1beta1", Resource: "flunders"})
	for _, name := range []string{"bowline", "clove-hitch"} {
		_, err := flunders.Namespace(metav1.NamespaceDefault).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "wardle.example.com/v1beta1",
			"kind":       "Flunder",
			"metadata":   map[string]any{"name": name},
			"spec":       map[string]any{"referenceType": "Flunder", "flunderReference": "bowline"},
		}}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating flunder %s: %w", name, err)
		}
	}
	return nil
}

// linkKubectl links kubectl into the folder.
func linkKubectl(ctx context.Context, dir string) error {
	path, err := tools.Path(ctx, tools.Config{}, "kubectl")
	if err != nil {
		return err
	}
	kubectl := filepath.Join(dir, "kubectl")
	if err := os.Remove(kubectl); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(path, kubectl)
}

// path returns the folders of kubectl and of its plug-in, for PATH.
func (o options) path() string { return o.dir + ":" + filepath.Dir(o.fairlead) }

// describe writes the kubeconfigs and a link to kubectl, and returns what to try.
func describe(ctx context.Context, c *cluster.Cluster, front *cluster.Front, o options) (string, error) {
	kubeconfig, direct := filepath.Join(o.dir, "kubeconfig"), filepath.Join(o.dir, "kubeconfig-direct")
	err1 := front.Endpoint.WriteKubeconfig(kubeconfig, c.Admin())
	err2 := c.Endpoint().WriteKubeconfig(direct, c.Admin())
	err3 := linkKubectl(ctx, o.dir)
	return fmt.Sprintf(`
Fairlead stands before a real kube-apiserver.

  front door   %s
  admin port   %s   (health, metrics)
  kubeconfig   %s   (%s: without Fairlead)
  logs         %s

Try:

  export KUBECONFIG="%[3]s" PATH="%[6]s:$PATH"
  kubectl get flunders -A           # served by the extension server
  kubectl fairlead status           # Fairlead's verdict on each APIService; see also explain
  kubectl get apiservices           # AVAILABLE is the verdict of kube-apiserver's own aggregator, up to half a minute later
  kubectl fairlead lint --allow-loopback-backends   # the preflight; its 'to do' is for a real cluster
  kubectl auth whoami
  kubectl explain flunders.spec
  kubectl create namespace demo && kubectl delete namespace demo
  curl -k '%[2]s/readyz?verbose'
  kubectl proxy                     # and the status page is http://127.0.0.1:8001/fairlead/

Ctrl-C ends everything.
`, front.Endpoint.URL, front.Admin.URL, kubeconfig, direct, filepath.Join(c.Dir(), "*.log"), o.path()), errors.Join(err1, err2, err3)
}
