//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// testKubectl runs kubectl's everyday commands for each kind, one after another on the same objects.
func testKubectl(t *testing.T, w *world) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			ns, kc := w.namespace(t), w.admin(t)
			for _, s := range story(t, k) {
				t.Run(s.name, func(t *testing.T) { kc.Says(t, s.code, s.stdin, s.args+" -n "+ns, s.want...) })
			}
		})
	}
}

type step struct {
	name  string
	args  string // after "kubectl", divided by blanks
	stdin string
	code  int
	want  []string // in either output
}

func story(t *testing.T, k kind) []step {
	t.Helper()
	stale := k.object("one", "stale")
	stale.SetResourceVersion("1")
	old := string(must.Get(stale.MarshalJSON())(t))
	value, says := fmt.Sprintf("-o jsonpath={.%s.%s}", k.path[0], k.path[1]), func(texts ...string) []string { return texts }
	jsonPatch := fmt.Sprintf(`[{"op":"replace","path":"/%s/%s","value":"replaced"}]`, k.path[0], k.path[1])
	get := "get " + k.name
	return []step{
		{"create", "create -f -", k.manifest("one", "first"), 0, says("created")},
		{"create again", "create -f -", k.manifest("one", "x"), 1, says("AlreadyExists")},
		{"create another", "create -f -", k.manifest("two", "x"), 0, nil},
		{"create the invalid", "create -f -", k.manifest(k.invalid[0], k.invalid[1]), 1, says("nvalid")},
		{"create with an unknown field", "create -f -", strings.Replace(k.manifest("odd", "x"), "{", `{"oddity":1,`, 1), 1, says("unknown field")},
		{"create by dry run", "create --dry-run=server -o yaml -f -", k.manifest("ghost", "boo"), 0, says("boo", "uid:")},
		{"get none", get + " ghost", "", 1, says("NotFound")},
		{"list", get + " -o name", "", 0, says("/one\n", "/two\n")},
		{"list all", get + " -A", "", 0, append([]string{"one", "two"}, k.columns...)},
		{"list by field", get + " --field-selector metadata.name=one -o yaml", "", 0, says("first")},
		{"describe", "describe " + k.name + " one", "", 0, says("first")},
		{"explain", "explain --recursive " + k.name, "", 0, says("KIND:       "+k.kind, k.path[0], "ownerReferences")},
		{"apply", "apply -f -", k.manifest("applied", "left"), 0, says("created")},
		{"diff of the same", "diff -f -", k.manifest("applied", "left"), 0, nil},
		{"diff of a change", "diff -f -", k.manifest("applied", "right"), 1, says("left", "right")},
		{"apply a change", "apply -f -", k.manifest("applied", "right"), 0, says("configured")},
		{"apply on the server", "apply --server-side --field-manager=me -f -", k.manifest("shared", "mine"), 0, says("serverside-applied")},
		{"apply another's field", "apply --server-side --field-manager=you -f -", k.manifest("shared", "yours"), 1, says("conflict with \"me\"")},
		{"apply it by force", "apply --server-side --field-manager=you --force-conflicts -f -", k.manifest("shared", "yours"), 0, nil},
		{"what was applied", get + " shared " + value, "", 0, says("yours")},
		{"merge patch", "patch " + k.name + " one --type=merge -p " + k.patch("merged"), "", 0, says("patched")},
		{"JSON patch", "patch " + k.name + " one --type=json -p " + jsonPatch, "", 0, says("patched")},
		{"what was patched", get + " one " + value, "", 0, says("replaced")},
		{"strategic patch", "patch " + k.name + " one --type=strategic -p " + k.patch("strategic"), "", 0, says("patched")},
		{"label", "label " + k.name + " one colour=red", "", 0, says("labeled")},
		{"annotate", "annotate " + k.name + " two note=blue", "", 0, says("annotated")},
		{"list by label", get + " -l colour=red -o name", "", 0, says("/one\n")},
		{"the annotation", get + " two -o jsonpath={.metadata.annotations.note}", "", 0, says("blue")},
		{"replace", "replace -f -", k.manifest("one", "new"), 0, says("replaced")},
		{"replace the stale", "replace -f -", old, 1, says("Conflict")},
		{"delete", "delete " + k.name + " one", "", 0, says("deleted")},
		{"delete all", "delete --all " + k.name, "", 0, says("deleted")},
		{"nothing is left", get + " one two applied", "", 1, says("NotFound")},
	}
}

// kind is a kind of object with a string that the cases write and read back. The same cases run for one that
// kube-apiserver stores and one that the extension server stores: clients must not notice a difference.
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
	data, _ := k.object(name, value).MarshalJSON() // maps of strings always marshal
	return string(data)
}

func (k kind) patch(value string) string {
	return fmt.Sprintf(`{%q:{%q:%q}}`, k.path[0], k.path[1], value)
}

// testControllers checks the work of a kube-controller-manager that is a client of the server under
// test. It needs all of discovery, watches of every resource, tokens, and deletions on both sides.
func testControllers(t *testing.T, w *world) {
	t.Run("a namespace gets its ServiceAccount and CA bundle", func(t *testing.T) {
		ns, kc := w.namespace(t), w.admin(t)
		kc.Soon(t, "it has the ServiceAccount", "get", "-n", ns, "serviceaccount/default")
		kc.Soon(t, "it has the CA bundle", "get", "-n", ns, "configmap/kube-root-ca.crt")
	})
	t.Run("a namespace is deleted with all in it", func(t *testing.T) {
		ns, kc := w.namespace(t), w.admin(t)
		for _, k := range kinds() {
			must.Get(w.dynamic.Resource(k.gvr).Namespace(ns).Create(t.Context(), k.object("inside", "x"), metav1.CreateOptions{}))(t)
		}
		kc.Run(t, "delete", "namespace", ns, "--timeout=4m") // returns when the namespace is gone
		for _, k := range kinds() {
			list := must.Get(w.dynamic.Resource(k.gvr).Namespace(ns).List(t.Context(), metav1.ListOptions{}))(t)
			check.Same(t, 0, len(list.Items), "%s that outlived their namespace", k.name)
		}
	})
	local, remote := kinds()[0], kinds()[1]
	for _, c := range []struct {
		owner, owned kind
		policy       metav1.DeletionPropagation
	}{
		{local, remote, metav1.DeletePropagationForeground}, {remote, remote, metav1.DeletePropagationBackground}, {remote, local, metav1.DeletePropagationOrphan},
	} {
		t.Run(fmt.Sprintf("%s of %s %s", c.owned.name, c.owner.name, c.policy), func(t *testing.T) {
			t.Parallel()
			collect(t, w, c.owner, c.owned, c.policy)
		})
	}
}

// collect deletes an owner and checks what happens to the object that it owns.
func collect(t *testing.T, w *world, owner, owned kind, policy metav1.DeletionPropagation) {
	ns := w.namespace(t)
	owners, owneds := w.dynamic.Resource(owner.gvr).Namespace(ns), w.dynamic.Resource(owned.gvr).Namespace(ns)
	parent := must.Get(owners.Create(t.Context(), owner.object("parent", "x"), metav1.CreateOptions{}))(t)
	child := owned.object("child", "x")
	child.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: parent.GetAPIVersion(), Kind: parent.GetKind(), Name: "parent", UID: parent.GetUID(), BlockOwnerDeletion: new(true),
	}})
	must.Get(owneds.Create(t.Context(), child, metav1.CreateOptions{}))(t)
	// The collector must know the child before its owner is deleted: else it deletes an orphan, too
	// (kinds are watched separately). It collects what has no owner, after what was made before.
	witness := owned.object("witness", "x")
	witness.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: parent.GetAPIVersion(), Kind: parent.GetKind(), Name: "nobody", UID: "none"}})
	must.Get(owneds.Create(t.Context(), witness, metav1.CreateOptions{}))(t)
	gone := func(from dynamic.ResourceInterface, name string) {
		suite.Eventually(t, 3*time.Minute, name+" is gone", func() (bool, string) {
			_, err := from.Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		})
	}
	gone(owneds, "witness") // then the collector knows the child
	must.Do(t, owners.Delete(t.Context(), "parent", metav1.DeleteOptions{PropagationPolicy: &policy}))
	gone(owners, "parent")
	if policy != metav1.DeletePropagationOrphan {
		gone(owneds, "child")
		return
	}
	suite.Eventually(t, 3*time.Minute, "the child has no owner", func() (bool, string) {
		left, err := owneds.Get(t.Context(), "child", metav1.GetOptions{})
		return err == nil && len(left.GetOwnerReferences()) == 0, fmt.Sprint(left, err)
	})
}

const knots = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: knots.rigging.example.org}
spec:
  group: rigging.example.org
  scope: Namespaced
  names: {plural: knots, singular: knot, kind: Knot, shortNames: [kn]}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {
      turns: {type: integer, description: How often the line goes round.}}}}}}}
`

const bowline = `{"apiVersion":"rigging.example.org/v1","kind":"Knot","metadata":{"name":"bowline"},"spec":{"turns":1}}`

// testCustomResources defines a resource and uses it immediately, as Helm charts with CRDs do.
func testCustomResources(t *testing.T, w *world) {
	ns, kc := w.namespace(t), w.admin(t)
	kc.Cache = t.TempDir()
	kc.Feed(t, knots, "apply", "-f", "-")
	kc.Run(t, "wait", "--for=condition=Established", "--timeout=4m", "crd/knots.rigging.example.org")
	// Discovery is read from kube-apiserver some ten milliseconds after a change, and every 2 s. On
	// busy cores kube-apiserver itself lists a resource a while after it is Established.
	suite.Eventually(t, 45*time.Second, "it can be created", func() (bool, string) { // less than the 50 s of other polls
		a := kc.Try(t, bowline, "create", "-n", ns, "-f", "-")
		return a.Code == 0, a.Errs
	})
	kc.Run(t, "get", "kn", "bowline", "-n", ns)
	listed := func(want string) func() (bool, string) {
		return func() (bool, string) {
			kc.Cache = t.TempDir()
			a := kc.Try(t, "", "api-resources", "--api-group=rigging.example.org", "-o", "name")
			return a.Code == 0 && a.Out == want, a.Out + a.Errs // it fails while testNodes's metrics-server is new
		}
	}
	suite.Eventually(t, time.Minute, "it is listed", listed("knots.rigging.example.org\n"))
	suite.Eventually(t, time.Minute, "it is explained", func() (bool, string) { // its OpenAPI is published in the background
		a := kc.Try(t, "", "explain", "knot.spec.turns")
		return strings.Contains(a.Out, "How often the line goes round."), a.Out + a.Errs
	})
	kc.Run(t, "delete", "crd", "knots.rigging.example.org", "--timeout=4m")
	suite.Eventually(t, time.Minute, "it is no longer listed", listed(""))
}
