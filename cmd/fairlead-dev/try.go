package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

// createFlunders creates two objects of the sample extension server through Fairlead, so that the
// first command shows some.
func createFlunders(ctx context.Context, rc *rest.Config) error {
	client, err := dynamic.NewForConfig(rc)
	if err != nil {
		return err
	}
	flunders := client.Resource(schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1beta1", Resource: "flunders"})
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
func linkKubectl(ctx context.Context, dir string) (string, error) {
	path, err := tools.Path(ctx, tools.Config{}, "kubectl")
	if err != nil {
		return "", err
	}
	kubectl := filepath.Join(dir, "kubectl")
	if err := os.Remove(kubectl); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return kubectl, os.Symlink(path, kubectl)
}

// describe writes the kubeconfigs and a link to kubectl, and returns what to try.
func describe(ctx context.Context, c *cluster.Cluster, front *cluster.Front, o options) (string, error) {
	kubeconfig := filepath.Join(o.dir, "kubeconfig")
	if err := front.Endpoint.WriteKubeconfig(kubeconfig, c.Admin()); err != nil {
		return "", err
	}
	direct := filepath.Join(o.dir, "kubeconfig-direct")
	if err := c.Endpoint().WriteKubeconfig(direct, c.Admin()); err != nil {
		return "", err
	}
	kubectl, err := linkKubectl(ctx, o.dir)
	return fmt.Sprintf(`
Fairlead stands before a real kube-apiserver.

  front door   %s
  admin port   %s   (health, metrics)
  kubeconfig   %s   (%s: without Fairlead)
  logs         %s

Try:

  export KUBECONFIG=%s
  %[7]s get flunders -A                     # served by the extension server
  %[7]s get apiservices
  %[7]s auth whoami
  %[7]s explain flunders.spec
  %[7]s create namespace demo && %[7]s delete namespace demo
  %[8]s status                 # the state of each APIService; see also explain and lint
  curl -k '%[2]s/readyz?verbose'
  %[7]s proxy                               # and the status page is http://127.0.0.1:8001/fairlead/

Ctrl-C ends everything.
`, front.Endpoint.URL, front.Admin.URL, kubeconfig, direct, filepath.Join(c.Dir(), "*.log"), kubeconfig, kubectl, o.fairlead), err
}
