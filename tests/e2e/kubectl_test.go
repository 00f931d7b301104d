//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

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

// step is a command and what it must print.
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
	data, _ := k.object(name, value).MarshalJSON() // maps of strings always marshal
	return string(data)
}

// patch returns a merge patch that sets the value.
func (k kind) patch(value string) string {
	return fmt.Sprintf(`{%q:{%q:%q}}`, k.path[0], k.path[1], value)
}
