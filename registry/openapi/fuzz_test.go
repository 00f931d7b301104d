package openapi

import (
	"encoding/json"
	"strings"
	"testing"

	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Whatever a backend's v2 document says, it is merged or left out, and every path and definition that others have stays as it was.
func FuzzSpec(f *testing.F) {
	own := define("own.example.com/v1", "own")
	for _, doc := range []object{specOf(own), specOf(own, define("apps/v1", "poison")), {"paths": nil}, {"paths": object{}, "definitions": object{"def.apps/v1": object{}}}} {
		b, err := json.Marshal(doc)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"paths":{"/apis/own.example.com/v1/x":{"$ref":"#/paths/~1apis~1own.example.com~1v1~1x","get":{"parameters":[{"$ref":"#/parameters/p"}]}}},"parameters":{"p":{"$ref":"#/parameters/p"}}}`))
	f.Add([]byte(`{"paths":{"/apis/own.example.com/v1/x":{"get":{"responses":{"200":{"schema":{"$ref":"#/definitions/a"}}}}}},"definitions":{"a":{"allOf":[{"$ref":"#/definitions/a"}],"x-kubernetes-group-version-kind":{}}}}`))
	base, err := json.Marshal(specOf(define("apps/v1", "local")))
	if err != nil {
		f.Fatal(err)
	}
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
		there, err := readSpec(base)
		if err != nil {
			t.Fatal(err)
		}
		merged, err := add(there, input{spec: pack(filtered), own: gvs})
		if err != nil {
			return
		}
		for path := range merged.Paths.Paths {
			if path != "/version/" && path != "/apis/apps/v1/things" && !strings.HasPrefix(path, "/apis/own.example.com/v1/") {
				t.Errorf("it has the path %q", path)
			}
		}
		was, err := json.Marshal(mustRead(t, base).Definitions["def.apps/v1"])
		if err != nil {
			t.Fatal(err)
		}
		is, err := json.Marshal(merged.Definitions["def.apps/v1"])
		if err != nil || string(is) != string(was) {
			t.Errorf("another's definition has become %s, it was %s: %v", is, was, err)
		}
		if _, err := encode(merged); err != nil {
			t.Errorf("what was merged cannot be served: %v", err)
		}
	})
}

func mustRead(t *testing.T, body []byte) *spec.Swagger {
	t.Helper()
	sw, err := readSpec(body)
	if err != nil {
		t.Fatal(err)
	}
	return sw
}

// Whatever a backend's v3 document says, it has a protobuf form that can be read, or none.
func FuzzDocument(f *testing.F) {
	for _, s := range []string{`{"openapi":"3.0.0"}`, `{"openapi":"3.0.0","info":{"title":"t","version":"v"},"paths":{"/a":{"get":{"responses":{"200":{"description":"OK"}}}}},"components":{"schemas":{"a":{"$ref":"#/components/schemas/a"}}}}`, `{"openapi":"3.1","paths":[],"info":null}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if !json.Valid(body) {
			return
		}
		d := newDocument(body, "")
		p, err := d.proto()
		if err != nil {
			return
		}
		b, err := p.open()
		if err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(b, &openapi_v3.Document{}); err != nil {
			t.Errorf("the protobuf form cannot be read: %v", err)
		}
	})
}
