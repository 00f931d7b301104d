package discovery

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// Whatever is in a backend's document or in Accept, reading it costs in proportion to its size. So does placing the
// local apiserver's groups among those of the table, and taking the documents of all APIServices.
func TestInProportion(t *testing.T) {
	d := New(Config{Config: scene.New(t).Config()})
	repeated := proportion.Repeat
	const (
		list     = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[`
		group    = list + `{"metadata":{"name":"own.example.com"},"versions":[`
		resource = `{"resource":"r@","singularResource":"s@","scope":"Namespaced","responseKind":{"group":"","version":"","kind":"K@"},"verbs":["get"]}`
		within   = group + `{"version":"v1","resources":[`
		legacy   = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"own.example.com/v1","resources":[`
	)
	own := &registry.Entry{Name: "v1.own.example.com", GroupVersion: schema.GroupVersion{Group: "own.example.com", Version: "v1"}}
	empty := &state{versions: map[schema.GroupVersion]version{}}
	var rows []proportion.Row
	for _, of := range []struct {
		name   string
		n      int
		text   func(n int) string
		legacy bool
	}{
		{"groups", 100, repeated(list, `{"metadata":{"name":"g@"},"versions":[{"version":"v1"}]},`, `]}`), false},
		{"versions", 100, repeated(group, `{"version":"v@"},`, `]}]}`), false},
		{"one version again and again", 100, repeated(group, `{"version":"v1"},`, `]}]}`), false},
		{"resources", 100, repeated(within, resource+",", `]}]}]}`), false},
		{"subresources", 100, repeated(within+`{"resource":"r","subresources":[`, `{"subresource":"s@","verbs":["get"]},`, `]}]}]}]}`), false},
		{"verbs", 500, repeated(within+`{"resource":"r","verbs":[`, `"v@",`, `]}]}]}]}`), false},
		{"categories", 500, repeated(within+`{"resource":"r","categories":[`, `"v@",`, `]}]}]}]}`), false},
		{"short names", 500, repeated(within+`{"resource":"r","shortNames":[`, `"v@",`, `]}]}]}]}`), false},
		{"labels of a group", 200, repeated(list+`{"metadata":{"labels":{`, `"l@":"v",`, `}}}]}`), false},
		{"unknown fields", 200, repeated(`{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2",`, `"x@":1,`, `}`), false},
		{"levels", 40, func(n int) string { return list + strings.Repeat("[", n) + strings.Repeat("]", n) + `]}` }, false},
		{"a long name", 10_000, func(n int) string { return within + `{"resource":"` + strings.Repeat("r", n) + `"}]}]}]}` }, false},
		{"escapes", 2000, func(n int) string { return within + `{"resource":"` + strings.Repeat(`\u00e4`, n) + `"}]}]}]}` }, false},
		{"legacy resources", 100, repeated(legacy, `{"name":"r@","singularName":"s@","namespaced":true,"kind":"K@","verbs":["get"]},`, `]}`), true},
		{"legacy subresources of one", 100, repeated(legacy+`{"name":"r","kind":"K","verbs":[]},`, `{"name":"r/s@","kind":"K@","verbs":["get"]},`, `]}`), true},
		{"legacy subresources of none", 100, repeated(legacy, `{"name":"r@/s","kind":"K@","verbs":["get"]},`, `]}`), true},
		{"legacy verbs", 500, repeated(legacy+`{"name":"r","kind":"K","verbs":[`, `"v@",`, `]}]}`), true},
	} {
		rows = append(rows, proportion.Row{Name: of.name, N: of.n, Held: 40, Of: func(n int) (int, func() any) { // an APIResourceDiscovery has 300 bytes
			a := documents.Answer{Status: http.StatusOK, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON + aggregatedParams}}, Body: []byte(of.text(n))}
			return len(a.Body), func() any {
				found := make(map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery)
				var err error
				if of.legacy {
					found[own.GroupVersion], err = d.convert(a)
				} else {
					found, err = d.parse(a)
				}
				if err != nil {
					return []any{err}
				}
				next, _ := d.taken(empty, []*registry.Entry{own}, found, "")
				list := &apidiscoveryv2.APIGroupDiscoveryList{Items: []apidiscoveryv2.APIGroupDiscovery{{Versions: []apidiscoveryv2.APIVersionDiscovery{*next.versions[own.GroupVersion].doc}}}}
				return []any{next, written(d.codecs, list, runtime.ContentTypeJSON)}
			}
		}})
	}
	for _, s := range proportion.Heads() {
		if strings.HasPrefix(s.Name, "Accept") || s.Name == "If-None-Match" {
			rows = append(rows, proportion.Row{Name: s.Name, N: s.Small, Of: func(size int) (int, func() any) {
				h := s.Of("/apis", size)
				return h.Size(), func() any {
					for _, f := range h.Fields {
						d.choose(f.Value)
						produces(f.Value, d.codecs.supported)
						negotiate.TakesGzip(f.Value)
						negotiate.Matches(`"none"`, f.Value)
					}
					return nil
				}
			}})
		}
	}
	for name, gv := range map[string]func(i int) schema.GroupVersion{
		"groups that the table does not have": func(i int) schema.GroupVersion {
			return schema.GroupVersion{Group: fmt.Sprintf("g%d", i), Version: "v1"}
		},
		"versions that the table does not have": func(i int) schema.GroupVersion {
			return schema.GroupVersion{Group: "g", Version: fmt.Sprintf("v%d", i)}
		},
	} {
		rows = append(rows, proportion.Row{Name: name, N: 1000, Held: 40, Of: func(n int) (int, func() any) {
			m := &merge{table: registry.Build(registry.Input{Complete: true}, nil), local: map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery{}}
			for i := range n {
				m.local[gv(i)] = &apidiscoveryv2.APIVersionDiscovery{}
			}
			return 30 * n, func() any { return m.groups() }
		}})
	}
	rows = append(rows, proportion.Row{Name: "APIServices", N: 1000, Of: func(n int) (int, func() any) {
		in := registry.Input{APIServices: make(map[string]*apiregistrationv1.APIService), Complete: true}
		for i := range n {
			o := &apiregistrationv1.APIService{Spec: apiregistrationv1.APIServiceSpec{
				Group: fmt.Sprintf("g%d", i), Version: "v1",
				Service: &apiregistrationv1.ServiceReference{Namespace: "x", Name: "s"},
			}}
			o.Name = "v1." + o.Spec.Group
			in.APIServices[o.Name] = o
		}
		table, cfg := registry.Build(in, nil), d.cfg
		cfg.Tables = scene.TableFunc(func() *registry.Table { return table })
		d := New(cfg)
		return 100 * n, func() any {
			for _, e := range table.Entries() {
				doc := resources("v1", "things")
				d.accept(&version{}, e.GroupVersion, &doc)
			}
			return nil
		}
	}})
	proportion.Check(t, rows...)
}
