package manifest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// Whatever is in a file, reading it costs in proportion to its size.
func TestInProportion(t *testing.T) {
	d := NewDecoder()
	repeat := proportion.Repeat
	const (
		configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b}\n"
		slice     = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, namespace: b, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\n"
		service   = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\n"
		role      = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: a}\n"
	)
	var rows []proportion.Row
	for _, of := range []struct {
		name string
		n    int
		text func(n int) string
	}{
		{"documents", 50, repeat("", "apiVersion: v1\nkind: Service\nmetadata: {name: s@, namespace: b}\nspec: {ports: [{port: 1}]}\n---\n", "")},
		{"documents of one name", 50, repeat("", configMap+"---\n", "")},
		{"empty documents", 1000, repeat("", "---\n", "")},
		{"ends of documents", 1000, repeat("", "...\n", "")},
		{"comments", 1000, repeat(configMap, "# comment\n", "")},
		{"empty lines", 1000, repeat("", "\n", "")},
		{"items of a List", 50, repeat("apiVersion: v1\nkind: List\nitems:\n", "- {apiVersion: v1, kind: ConfigMap, metadata: {name: s@, namespace: b}}\n", "")},
		{"wrong items of a List", 50, repeat("apiVersion: v1\nkind: List\nitems:\n", "- {apiVersion: v1, kind: ConfigMap, metadata: {name: S@, namespace: b}}\n", "")},
		{"keys", 200, repeat(configMap+"data:\n", "  k@: v\n", "")},
		{"wrong keys", 3000, repeat(configMap+"data:\n", "  k/@: v\n", "")},
		{"unknown fields", 100, repeat(configMap, "k@: v\n", "")},
		{"one field again and again", 200, repeat(configMap, "data: {}\n", "")},
		{"labels", 200, repeat("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: b\n  labels:\n", "    l@: v\n", "")},
		{"wrong labels", 100, repeat("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: b\n  labels:\n", "    l/@/: v\n", "")},
		{"annotations", 200, repeat("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: b\n  annotations:\n", "    l@: v\n", "")},
		{"finalizers", 200, repeat("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: b\n  finalizers:\n", "  - example.com/f@\n", "")},
		{"ports of a slice", 200, repeat(slice+"ports:\n", "- {name: p@, port: 1}\n", "")},
		{"wrong ports of a slice", 100, repeat(slice+"ports:\n", "- {name: P, port: 0}\n", "")},
		{"endpoints of a slice", 200, repeat(slice+"ports: []\nendpoints:\n", "- addresses: [10.0.0.1]\n", "")},
		{"addresses of an endpoint", 20, repeat(slice+"ports: []\nendpoints:\n- addresses:\n", "  - 10.0.0.1\n", "")},
		{"ports of a Service", 200, repeat(service+"spec:\n  ports:\n", "  - {name: p@, port: 1@}\n", "")},
		{"rules of a role", 200, repeat(role+"rules:\n", "- {apiGroups: [a], resources: [b], verbs: [c]}\n", "")},
		{"verbs of a rule", 500, repeat(role+"rules:\n- apiGroups: [a]\n  resources: [b]\n  verbs:\n", "  - get\n", "")},
		{"levels", 400, func(n int) string { return configMap + "data: " + strings.Repeat("[", n) + strings.Repeat("]", n) }},
		{"levels of blocks", 100, func(n int) string {
			var b strings.Builder
			b.WriteString(configMap + "data:\n")
			for i := range n / 10 {
				b.WriteString(strings.Repeat(" ", i+1) + "a:\n")
			}
			return b.String()
		}},
		{"anchors", 200, repeat(configMap+"data:\n", "  k@: &a@ v\n", "")},
		{"aliases", 200, repeat(configMap+"data:\n  k: &a v\n", "  k@: *a\n", "")},
		{"merged keys", 50, repeat(configMap+"data: &a {k: v}\nx:\n", "- {<<: *a, k@: v}\n", "")},
		{"a long text", 20_000, repeat(configMap+"data: {a: ", "x", "")},
		{"a folded text", 1000, repeat(configMap+"data:\n  a: >\n", "    line\n", "")},
		{"escapes", 2000, func(n int) string { return configMap + `data: {a: "` + strings.Repeat(`\u00e4`, n) + `"}` }},
		{"a long key", 500, repeat(configMap+"? ", "k", "")},
		{"quotes", 2000, repeat(configMap+"data: {a: ", "'", "")},
		{"tags", 200, repeat(configMap+"data:\n", "- !!str a\n", "")},
		{"directives", 200, repeat("", "%TAG ! tag:a\n", "")},
		{"zero bytes", 2000, repeat(configMap, "\x00", "")},
		{"JSON", 200, repeat(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"b"},"data":{"x":"y"`, `,"k@":"v"`, "}}")},
	} {
		rows = append(rows, proportion.Row{Name: of.name, N: of.n, Held: 40, Of: func(n int) (int, func() any) { // an object is larger than its shortest text
			data := []byte(of.text(n))
			return len(data), func() any {
				objects, faults := d.Decode("file", bytes.Clone(data))
				return []any{objects, faults}
			}
		}})
	}
	proportion.Check(t, rows...)
}
