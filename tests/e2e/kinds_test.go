//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// kind is a kind of object with a string that the cases write and read back. The same cases run for
// one that kube-apiserver stores and one that the extension server stores: clients must not notice
// a difference.
type kind struct {
	name    string // on kubectl's command line
	gvr     schema.GroupVersionResource
	kind    string
	path    [2]string // field that holds the string
	columns []string  // of kubectl get
	fixed   map[string]any
	invalid [2]string // name and value that its server refuses
}

func kinds() []kind {
	return []kind{
		{
			name: "configmaps", kind: "ConfigMap", path: [2]string{"data", "value"}, columns: []string{"NAME", "DATA", "AGE"}, invalid: [2]string{"Not_A_Name", "x"},
			gvr: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		},
		{
			name: "flunders", kind: "Flunder", path: [2]string{"spec", "flunderReference"}, columns: []string{"NAME", "CREATED AT"}, invalid: [2]string{"empty", ""},
			gvr:   schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1beta1", Resource: "flunders"},
			fixed: map[string]any{"referenceType": "Flunder"},
		},
	}
}

// object returns an object with the value.
func (k kind) object(name, value string) *unstructured.Unstructured {
	field := map[string]any{k.path[1]: value}
	maps.Copy(field, k.fixed)
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": k.gvr.GroupVersion().String(),
		"kind":       k.kind,
		"metadata":   map[string]any{"name": name},
		k.path[0]:    field,
	}}
}

// manifest is object as JSON, for kubectl.
func (k kind) manifest(name, value string) string {
	data, err := k.object(name, value).MarshalJSON()
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return string(data)
}

// jsonpath selects the value.
func (k kind) jsonpath() string { return fmt.Sprintf("jsonpath={.%s.%s}", k.path[0], k.path[1]) }

// create makes an object with the value.
func (w *world) create(t *testing.T, k kind, ns, name, value string) {
	t.Helper()
	must.Get(w.dynamic.Resource(k.gvr).Namespace(ns).Create(t.Context(), k.object(name, value), metav1.CreateOptions{}))(t)
}

// patch returns a merge patch that sets the value.
func (k kind) patch(value string) string {
	return fmt.Sprintf(`{%q:{%q:%q}}`, k.path[0], k.path[1], value)
}
