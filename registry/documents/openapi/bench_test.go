package openapi

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/scene"
)

// thousand is the v2 document of a thousand CRDs, 20 MB: a CRD typically has 20 KB, mostly its
// schema.
func thousand(tb testing.TB) object {
	tb.Helper()
	var kinds []kind
	for i := range 1000 {
		kinds = append(kinds, define(fmt.Sprintf("group%d.example.com/v1", i), "One of a thousand."))
	}
	doc := specOf(kinds...)
	for name, d := range doc["definitions"].(object) {
		properties := object{}
		for i := range 150 {
			properties[fmt.Sprintf("property%d", i)] = object{"type": "string", "description": fmt.Sprintf("Property %d says of %s what only that can say of itself, in a line.", i, name)}
		}
		d.(object)["properties"] = object{"spec": object{"type": "object", "properties": properties}}
	}
	return doc
}

// BenchmarkThousandCRDs merges the v2 document of a thousand CRDs with one backend's, and reports
// the memory that stays in use.
func BenchmarkThousandCRDs(b *testing.B) {
	s := newStage(b)
	body := must.Get(json.Marshal(thousand(b)))(b)
	size := float64(len(body))
	before := scene.Heap()
	own := define("own.example.com/v1", "own")
	remote := must.Get(json.Marshal(specOf(own)))(b)
	gvs := []schema.GroupVersion{{Group: "own.example.com", Version: "v1"}}
	in := &inputs{local: pack(body), sources: []input{{name: "own", spec: pack(remote), own: gvs}}, remote: gvs}
	body = nil //nolint:ineffassign,wastedassign // what is packed must not count as kept
	var kept *built
	for b.Loop() {
		kept = must.Get(s.o.merge(in))(b)
	}
	b.ReportMetric(size/(1<<20), "MB-document")
	b.ReportMetric((scene.Heap()-before+size)/(1<<20), "MB-kept")
	runtime.KeepAlive(kept)
	runtime.KeepAlive(in)
}
