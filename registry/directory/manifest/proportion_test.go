package manifest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// Whatever is in a file, reading it costs in proportion to its size.
func TestInProportion(t *testing.T) {
	d := NewDecoder()
	lines := func(begin string, line func(i int) string, end string) func(n int) string {
		return func(n int) string {
			var b strings.Builder
			b.WriteString(begin)
			for i := range n {
				b.WriteString(line(i))
			}
			return b.String() + end
		}
	}
	each := func(begin, line string) func(n int) string {
		return lines(begin, func(int) string { return line }, "")
	}
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
		{"documents", 50, lines("", func(i int) string {
			return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: b}\nspec: {ports: [{port: 1}]}\n---\n", i)
		}, "")},
		{"documents of one name", 50, each("", configMap+"---\n")},
		{"empty documents", 1000, each("", "---\n")},
		{"ends of documents", 1000, each("", "...\n")},
		{"comments", 1000, each(configMap, "# comment\n")},
		{"empty lines", 1000, each("", "\n")},
		{"items of a List", 50, lines("apiVersion: v1\nkind: List\nitems:\n", func(i int) string {
			return fmt.Sprintf("- {apiVersion: v1, kind: ConfigMap, metadata: {name: s%d, namespace: b}}\n", i)
		}, "")},
		{"wrong items of a List", 50, lines("apiVersion: v1\nkind: List\nitems:\n", func(i int) string {
			return fmt.Sprintf("- {apiVersion: v1, kind: ConfigMap, metadata: {name: S%d, namespace: b}}\n", i)
		}, "")},
		{"keys", 200, lines(configMap+"data:\n", func(i int) string { return fmt.Sprintf("  k%d: v\n", i) }, "")},
		{"wrong keys", 3000, lines(configMap+"data:\n", func(i int) string { return fmt.Sprintf("  k/%d: v\n", i) }, "")},
		{"unknown fields", 100, lines(configMap, func(i int) string { return fmt.Sprintf("k%d: v\n", i) }, "")},
		{"one field again and again", 200, each(configMap, "data: {}\n")},
		{"labels", 200, lines("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: b\n  labels:\n", func(i int) string { return fmt.Sprintf("    l%d: v\n", i) }, "")},
		{"wrong labels", 100, lines("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: b\n  labels:\n", func(i int) string { return fmt.Sprintf("    l/%d/: v\n", i) }, "")},
		{"annotations", 200, lines("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: b\n  annotations:\n", func(i int) string { return fmt.Sprintf("    l%d: v\n", i) }, "")},
		{"finalizers", 200, lines("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  namespace: b\n  finalizers:\n", func(i int) string { return fmt.Sprintf("  - example.com/f%d\n", i) }, "")},
		{"ports of a slice", 200, lines(slice+"ports:\n", func(i int) string { return fmt.Sprintf("- {name: p%d, port: 1}\n", i) }, "")},
		{"wrong ports of a slice", 100, each(slice+"ports:\n", "- {name: P, port: 0}\n")},
		{"endpoints of a slice", 200, each(slice+"ports: []\nendpoints:\n", "- addresses: [10.0.0.1]\n")},
		{"addresses of an endpoint", 20, each(slice+"ports: []\nendpoints:\n- addresses:\n", "  - 10.0.0.1\n")},
		{"ports of a Service", 200, lines(service+"spec:\n  ports:\n", func(i int) string { return fmt.Sprintf("  - {name: p%d, port: %d}\n", i, i+1) }, "")},
		{"rules of a role", 200, each(role+"rules:\n", "- {apiGroups: [a], resources: [b], verbs: [c]}\n")},
		{"verbs of a rule", 500, each(role+"rules:\n- apiGroups: [a]\n  resources: [b]\n  verbs:\n", "  - get\n")},
		{"levels", 400, func(n int) string { return configMap + "data: " + strings.Repeat("[", n) + strings.Repeat("]", n) }},
		{"levels of blocks", 100, func(n int) string {
			var b strings.Builder
			b.WriteString(configMap + "data:\n")
			for i := range n / 10 {
				b.WriteString(strings.Repeat(" ", i+1) + "a:\n")
			}
			return b.String()
		}},
		{"anchors", 200, lines(configMap+"data:\n", func(i int) string { return fmt.Sprintf("  k%d: &a%d v\n", i, i) }, "")},
		{"aliases", 200, lines(configMap+"data:\n  k: &a v\n", func(i int) string { return fmt.Sprintf("  k%d: *a\n", i) }, "")},
		{"merged keys", 50, lines(configMap+"data: &a {k: v}\nx:\n", func(i int) string { return fmt.Sprintf("- {<<: *a, k%d: v}\n", i) }, "")},
		{"a long text", 20_000, each(configMap+"data: {a: ", "x")},
		{"a folded text", 1000, each(configMap+"data:\n  a: >\n", "    line\n")},
		{"escapes", 2000, func(n int) string { return configMap + `data: {a: "` + strings.Repeat(`\u00e4`, n) + `"}` }},
		{"a long key", 500, each(configMap+"? ", "k")},
		{"quotes", 2000, each(configMap+"data: {a: ", "'")},
		{"tags", 200, each(configMap+"data:\n", "- !!str a\n")},
		{"directives", 200, each("", "%TAG ! tag:a\n")},
		{"zero bytes", 2000, each(configMap, "\x00")},
		{"JSON", 200, lines(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"b"},"data":{"x":"y"`, func(i int) string { return fmt.Sprintf(`,"k%d":"v"`, i) }, "}}")},
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
