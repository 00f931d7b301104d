package openapi

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/scene"
)

// Any v2 document of a backend is merged or left out, and all paths and definitions of others stay
// as they were.
func FuzzSpec(f *testing.F) {
	own := define("own.example.com/v1", "own")
	for _, doc := range []object{specOf(own), specOf(own, define("apps/v1", "poison")), {"paths": nil}, {"paths": object{}, "definitions": object{"def.apps/v1": object{}}}} {
		b := must.Get(json.Marshal(doc))(f)
		f.Add(b)
	}
	f.Add([]byte(`{"paths":{"/apis/own.example.com/v1/x":{"$ref":"#/paths/~1apis~1own.example.com~1v1~1x","get":{"parameters":[{"$ref":"#/parameters/p"}]}}},"parameters":{"p":{"$ref":"#/parameters/p"}}}`))
	f.Add([]byte(`{"paths":{"/apis/own.example.com/v1/x":{"get":{"responses":{"200":{"schema":{"$ref":"#/definitions/a"}}}}}},"definitions":{"a":{"allOf":[{"$ref":"#/definitions/a"}],"x-kubernetes-group-version-kind":{}}}}`))
	base := must.Get(json.Marshal(specOf(define("apps/v1", "local"))))(f)
	gvs := []schema.GroupVersion{{Group: "own.example.com", Version: "v1"}}
	f.Fuzz(func(t *testing.T, body []byte) {
		sw, err := readSpec(body)
		if err != nil {
			return
		}
		if sw, err = filterRemote(sw, gvs); err != nil {
			return
		}
		filtered, err := encode(sw)
		if err != nil {
			return
		}
		there := must.Get(readSpec(base))(t)
		merged, err := add(there, input{spec: pack(filtered), own: gvs})
		if err != nil {
			return
		}
		for path := range merged.Paths.Paths {
			if path != "/version/" && path != "/apis/apps/v1/things" && !strings.HasPrefix(path, "/apis/own.example.com/v1/") {
				t.Errorf("the backend has the path %q", path)
			}
		}
		was := must.Get(json.Marshal(mustRead(t, base).Definitions["def.apps/v1"]))(t)
		is, err := json.Marshal(merged.Definitions["def.apps/v1"])
		if err != nil || string(is) != string(was) {
			t.Errorf("another server's definition is %s, it was %s: %v", is, was, err)
		}
		if _, err := encode(merged); err != nil {
			t.Errorf("the merged document cannot be served: %v", err)
		}
	})
}

func mustRead(t *testing.T, body []byte) *spec.Swagger {
	t.Helper()
	return must.Get(readSpec(body))(t)
}

// Any v3 document of a backend has a readable protobuf form, or none.
func FuzzDocument(f *testing.F) {
	for _, s := range []string{`{"openapi":"3.0.0"}`, `{"openapi":"3.0.0","info":{"title":"t","version":"v"},"paths":{"/a":{"get":{"responses":{"200":{"description":"OK"}}}}},"components":{"schemas":{"a":{"$ref":"#/components/schemas/a"}}}}`, `{"openapi":"3.1","paths":[],"info":null}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if !json.Valid(body) {
			return
		}
		d := newStage(t).o.newDocument(nil, body)
		p, err := d.proto()
		if err != nil {
			return
		}
		b := must.Get(p.open())(t)
		if err := proto.Unmarshal(b, &openapi_v3.Document{}); err != nil {
			t.Errorf("the protobuf form cannot be read: %v", err)
		}
	})
}

// Whatever a backend answers, it changes only its own part of the documents, and takes limited
// time.
func FuzzBackendSays(f *testing.F) {
	own := define("own.example.com/v1", "own")
	v2 := must.Get(json.Marshal(specOf(own, define("apps/v1", "poison"))))(f)
	const index = `{"paths":{"apis/own.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/own.example.com/v1?hash=A"},"apis/apps/v1":{"serverRelativeURL":"/openapi/v3/apis/apps/v1?hash=B"},"version":{}}}`
	const document = `{"openapi":"3.0.0","info":{"title":"t","version":"v"},"paths":{"/apis/apps/v1/x":{}},"components":{"schemas":{"a":{"$ref":"#/components/schemas/a"}}}}`
	for _, seed := range [][3]string{
		{string(v2), index, document}, {string(v2), "", ""}, {"{}", "{}", "{}"}, {"null", `{"paths":null}`, "null"}, {"[]", `{"paths":{"":{}}}`, `{"openapi":"3."}`},
		{`{"paths":{"/apis/own.example.com/v1/x":{"get":{"parameters":[{"in":"body","name":"b","schema":{"$ref":"#/definitions/a"}}],"responses":{"200":{"schema":{"type":"file"}}}}}},"definitions":{"a":{"$ref":"#/definitions/a"}}}`, "", ""},
		{`{"paths":{"/apis/own.example.com/v1/x":{"get":{"parameters":[{"in":"formData","name":"f","type":"file"},{"in":"header","name":"h","type":"array","items":{"type":"array","items":{}}}],"consumes":[""],"produces":[""],"responses":{"default":{"headers":{"x":{}}}}}}}}`, "", ""},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]), []byte(seed[2]))
	}
	f.Fuzz(func(t *testing.T, v2, index, document []byte) {
		if len(v2)+len(index)+len(document) > 1<<16 {
			return
		}
		begun := time.Now()
		s := newStage(t)
		s.Set(scene.Home, serving(define("apps/v1", "local")))
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
		must.Do(t, s.o.askLocal(t.Context()))
		entries := s.Table().Entries()
		st, _, _ := s.o.ask(t.Context(), &state{}, entries) // any answer is allowed
		for gv, v := range st.versions {
			if gv.String() != "own.example.com/v1" {
				t.Errorf("the backend describes %s", gv)
			}
			if v.v3 == nil {
				continue
			}
			if body, err := v.v3.json.open(); err != nil || !json.Valid(body) {
				t.Errorf("%s is served as %.200q: %v", gv, body, err)
			}
		}
		in := &inputs{local: s.o.local.Load().spec, remote: []schema.GroupVersion{entries[0].GroupVersion}}
		if v2 := st.versions[entries[0].GroupVersion].v2; v2 != nil {
			in.sources = []input{{name: "own", spec: v2, own: in.remote}}
		}
		b, err := s.o.merge(in)
		if err != nil {
			t.Fatalf("the merged document is missing: %v", err)
		}
		if _, err := b.proto(); err != nil {
			t.Errorf("the merged document has no protobuf form: %v", err)
		}
		body := must.Get(b.json.open())(t)
		merged := mustRead(t, body)
		for path := range merged.Paths.Paths {
			if path != "/version/" && path != "/apis/apps/v1/things" && !strings.HasPrefix(path, "/apis/own.example.com/v1/") {
				t.Errorf("the backend has the path %q", path)
			}
		}
		if d := merged.Definitions["def.apps/v1"]; d.Description != "local" {
			t.Errorf("another server's definition is %v", d)
		}
		// 64 KiB take milliseconds; this allows a hundred times that, under a fuzzer on a busy
		// machine.
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
