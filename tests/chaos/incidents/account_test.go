//go:build e2e

package incidents

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

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

// objects returns those of manifests.
func objects(manifests string) (all []*unstructured.Unstructured) {
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for o := new(unstructured.Unstructured); decoder.Decode(&o.Object) == nil; o = new(unstructured.Unstructured) {
		all = append(all, o)
	}
	return all
}

// account makes a copy of Fairlead's ServiceAccount with the shipped rights, and returns the names
// of the copies' manifests.
func (w *world) account(t *testing.T, name string) {
	t.Helper()
	var b strings.Builder
	for _, o := range w.grants {
		o = o.DeepCopy()
		switch o.GetKind() {
		case "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "RoleBinding":
		default:
			continue
		}
		o.SetName(o.GetName() + "-" + name)
		if role, _, _ := unstructured.NestedString(o.Object, "roleRef", "name"); strings.HasPrefix(role, "system:fairlead") {
			must.Do(t, unstructured.SetNestedField(o.Object, role+"-"+name, "roleRef", "name"))
		}
		if subjects, found, _ := unstructured.NestedSlice(o.Object, "subjects"); found {
			subjects[0].(map[string]any)["name"] = "fairlead-" + name //nolint:forcetypeassert // it is one
			must.Do(t, unstructured.SetNestedSlice(o.Object, subjects, "subjects"))
		}
		fmt.Fprintf(&b, "---\n%s", must.Get(yaml.Marshal(o.Object))(t))
	}
	w.apply(t, b.String())
}

// kubeconfig returns one with a token of that account.
func (w *world) kubeconfig(t *testing.T, e cluster.Endpoint, name string) string {
	t.Helper()
	file := filepath.Join(w.Dir(), "account-"+name+".kubeconfig")
	must.Do(t, e.WriteKubeconfig(file, cluster.Credentials{Token: suite.Token(t, w.core, "kube-system", "fairlead-"+name)}))
	return file
}
