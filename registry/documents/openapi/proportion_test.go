package openapi

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// Whatever is in a backend's document, filtering and converting it costs in proportion to its size,
// for any number of group-versions.
func TestInProportion(t *testing.T) {
	repeated := proportion.Repeat
	const (
		ok   = `"responses":{"200":{"description":"ok"}}`
		path = `{"paths":{"/apis/own.example.com/v0/x":{"get":{` + ok
	)
	var rows []proportion.Row
	for _, of := range []struct {
		name string
		n    int
		text func(n int) string
	}{
		{"paths", 100, repeated(`{"paths":{`, `"/apis/own.example.com/v0/x@":{"get":{`+ok+`}},`, `}}`)},
		{"paths of many group-versions", 200, repeated(`{"paths":{`, `"/apis/own.example.com/v@/x":{"get":{`+ok+`,"x-kubernetes-group-version-kind":{"group":"own.example.com","version":"v@","kind":"K"}}},`, `}}`)},
		{"foreign paths", 200, repeated(`{"paths":{`, `"/apis/foreign/v@/x":{"get":{`+ok+`}},`, `}}`)},
		{"definitions", 100, repeated(path+`}}},"definitions":{`, `"d@":{"type":"object"},`, `}}`)},
		{"references", 100, repeated(path+`}}},"definitions":{`, `"d@":{"properties":{"a":{"$ref":"#/definitions/d@-1"}}},`, `}}`)},
		{"a chain of references", 100, func(n int) string {
			last := fmt.Sprintf(`"ok","schema":{"$ref":"#/definitions/d%d"}`, n-1)
			return repeated(strings.Replace(path, `"ok"`, last, 1)+`}}},"definitions":{`, `"d@":{"properties":{"a":{"$ref":"#/definitions/d@-1"}}},`, `}}`)(n)
		}},
		{"definitions of one kind", 100, func(n int) string {
			const kind = `"x-kubernetes-group-version-kind":[{"group":"own.example.com","version":"v0","kind":"K"}]`
			return repeated(`{"paths":{"/apis/own.example.com/v0/x":{"get":{"responses":{`, `"@":{"description":"d","schema":{"$ref":"#/definitions/d@"}},`, `}}}},"definitions":{`)(n) + repeated(``, `"d@":{`+kind+`},`, `}}`)(n)
		}},
		{"names that become plain", 100, func(n int) string {
			return repeated(`{"paths":{"/apis/own.example.com/v0/x":{"get":{"responses":{`, `"@":{"description":"d","schema":{"$ref":"#/definitions/d`+strings.Repeat("%2C", 40)+`@"}},`, `}}}},"definitions":{`)(n) + repeated(``, `"d`+strings.Repeat(",", 40)+`@":{},`, `}}`)(n)
		}},
		{"kinds of a definition", 200, repeated(path+`}}},"definitions":{"d":{"x-kubernetes-group-version-kind":[`, `{"group":"own.example.com","version":"v@","kind":"K"},`, `]}}}`)},
		{"properties", 200, repeated(path+`}}},"definitions":{"d":{"properties":{`, `"p@":{"type":"string"},`, `}}}}`)},
		{"levels of properties", 10, func(n int) string {
			return path + `}}},"definitions":{"d":` + strings.Repeat(`{"properties":{"a":`, n) + `{}` + strings.Repeat(`}}`, n) + `}}`
		}},
		{"enumerations", 500, repeated(path+`}}},"definitions":{"d":{"enum":[`, `"e@",`, `]}}}`)},
		{"required properties", 500, repeated(path+`}}},"definitions":{"d":{"required":[`, `"e@",`, `]}}}`)},
		{"parameters", 100, repeated(path+`,"parameters":[`, `{"name":"p@","in":"query","type":"string"},`, `]}}}}`)},
		{"shared parameters", 100, repeated(path+`}}},"parameters":{`, `"p@":{"name":"p@","in":"query","type":"string"},`, `}}`)},
		{"responses", 100, repeated(`{"paths":{"/apis/own.example.com/v0/x":{"get":{"responses":{`, `"@":{"description":"d"},`, `}}}}}`)},
		{"tags", 500, repeated(path+`,"tags":[`, `"t@",`, `]}}}}`)},
		{"media types", 100, repeated(path+`,"produces":[`, `"a/b@",`, `]}}}}`)},
		{"extensions", 200, repeated(path+`,`, `"x-e@":1,`, `}}}}`)},
		{"a long description", 10_000, func(n int) string { return path + `,"description":"` + strings.Repeat("d", n) + `"}}}}` }},
	} {
		rows = append(rows, proportion.Row{Name: of.name, N: of.n, Held: 60, Of: func(n int) (int, func() any) { // a spec.Schema has 1 KB
			body := []byte(strings.ReplaceAll(of.text(n), `"paths"`, `"swagger":"2.0","info":{"title":"t","version":"v"},"paths"`))
			var own []schema.GroupVersion
			for i := range n {
				own = append(own, schema.GroupVersion{Group: "own.example.com", Version: fmt.Sprintf("v%d", i)})
			}
			return len(body) + 20*n, func() any {
				sw := must.Get(filterRemote(must.Get(readForeign(body))(t), own))(t)
				uniqueKinds(sw)
				v3, err := toV3(sw)
				return []any{pack(v3), err}
			}
		}})
	}
	proportion.Check(t, rows...)
}
