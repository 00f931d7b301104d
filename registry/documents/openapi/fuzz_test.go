package openapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// Whatever a backend answers, it changes only its own part of the documents, they have readable
// forms, and it takes limited time.
func FuzzBackendSays(f *testing.F) {
	own := define("own.example.com/v1", "own")
	v2 := must.Get(json.Marshal(specOf(own, define("apps/v1", "poison"))))(f)
	const index = `{"paths":{"apis/own.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/own.example.com/v1?hash=A"},"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=B"},"version":{}}}`
	const document = `{"openapi":"3.0.0","info":{"title":"t","version":"v"},"paths":{"/apis/apps/v1/x":{}},"components":{"schemas":{"a":{"$ref":"#/components/schemas/a"}}}}`
	for _, seed := range [][3]string{
		{string(v2), index, document}, {string(v2), "", ""}, {"{}", "{}", "{}"}, {"null", `{"paths":null}`, "null"}, {"[]", `{"paths":{"":{}}}`, `{"openapi":"3."}`},
		{`{"paths":{"/apis/own.example.com/v1/x":{"get":{"parameters":[{"in":"body","name":"b","schema":{"$ref":"#/definitions/a"}}],"responses":{"200":{"schema":{"type":"file"}}}}}},"definitions":{"a":{"$ref":"#/definitions/a"}}}`, "", ""},
		{`{"paths":{"/apis/own.example.com/v1/x":{"get":{"parameters":[{"in":"formData","name":"f","type":"file"},{"in":"header","name":"h","type":"array","items":{"type":"array","items":{}}}],"consumes":[""],"produces":[""],"responses":{"default":{"headers":{"x":{}}}}}}}}`, "", ""},
		{`{"paths":{},"definitions":{"def.apps.v1":{}}}`, index, `{"openapi":"3.0.0"}`}, {`{"paths":null}`, index, `{"openapi":"3.1","paths":[],"info":null}`},
		{`{"paths":{"/apis/own.example.com/v1/x":{"$ref":"#/paths/~1apis~1own.example.com~1v1~1x","get":{"parameters":[{"$ref":"#/parameters/p"}]}}},"parameters":{"p":{"$ref":"#/parameters/p"}}}`, "", ""},
		{`{"paths":{"/apis/own.example.com/v1/x":{"get":{"responses":{"200":{"schema":{"$ref":"#/definitions/a"}}}}}},"definitions":{"a":{"allOf":[{"$ref":"#/definitions/a"}],"x-kubernetes-group-version-kind":{}}}}`, "", ""},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]), []byte(seed[2]))
	}
	local := define("apps/v1", "local")
	f.Fuzz(func(t *testing.T, v2, index, document []byte) {
		if len(v2)+len(index)+len(document) > 1<<16 {
			return
		}
		begun := time.Now()
		s := newStage(t)
		s.Set(scene.Home, serving(local))
		s.Set("own", func(w http.ResponseWriter, r *http.Request) {
			body := document
			switch r.URL.Path {
			case "/openapi/v2":
				body = v2
			case "/openapi/v3":
				body = index
				if len(index) == 0 {
					w.WriteHeader(http.StatusNotFound) // v2 is converted
				}
			}
			_, _ = w.Write(body)
		})
		s.Claim("own.example.com/v1", "own", 100, 10)
		var home atomic.Pointer[localState]
		must.Do(t, s.o.askLocal(t.Context(), "", &home))
		entries := s.Table().Entries()
		st, _, _ := s.o.ask(t.Context(), &state{}, entries) // any answer is allowed
		for gv, v := range st.versions {
			check.Same(t, true, gv.String() == "own.example.com/v1", "the backend describes %s", gv)
			if v.v3 == nil {
				continue
			}
			body := v.v3.json.open()
			check.Same(t, true, json.Valid(body), "%s is served as %.200q", gv, body)
			if p, err := v.v3.proto(); err == nil { // it may have none
				must.Do(t, proto.Unmarshal(p.open(), &openapi_v3.Document{}))
			}
		}
		in := &inputs{local: home.Load().spec, remote: []schema.GroupVersion{entries[0].GroupVersion}}
		if v2 := st.versions[entries[0].GroupVersion].v2; v2 != nil {
			in.sources = []input{{name: "own", spec: v2, own: in.remote}}
		}
		b := s.o.merge(in, nil)
		must.Do(t, b.err)
		check.Is(t, nil, check.Err(b.proto()), "the protobuf form of the merged document")
		merged := must.Get(readSpec(b.json.open()))(t)
		for path := range merged.Paths.Paths {
			check.Same(t, false, path != "/version/" && path != "/apis/apps/v1/things" && !strings.HasPrefix(path, "/apis/own.example.com/v1/"), "the backend has the path %q", path)
		}
		was := must.Get(readSpec(must.Get(json.Marshal(specOf(local)))(t)))(t).Definitions["def.apps.v1"]
		check.Same(t, string(must.Get(json.Marshal(was))(t)), string(must.Get(json.Marshal(merged.Definitions["def.apps.v1"]))(t)), "another server's definition")
		// 64 KiB take milliseconds; this allows a hundred times that, under a fuzzer on a busy machine.
		check.Same(t, true, time.Since(begun) <= 10*time.Second, "it took %s", time.Since(begun))
	})
}
