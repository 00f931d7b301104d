package openapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// Whatever a backend calls its definitions, and however it writes references, those of the
// documents made of its v2 document lead somewhere, with and without a local apiserver, and nothing
// is lost if they are written as RFC 6901 says.
func FuzzReferences(f *testing.F) {
	for mode := range byte(3) {
		f.Add("github.com/x/v1.Opt", "a~b", "c.C", mode)
		f.Add("%41", "ü ö", "A", mode)
		f.Add("a/b", "a~1b", "a.b", mode)
		f.Add("", "~0", "_v2", mode)
		f.Add("def.apps.v1", "a?b#c", "a\x00b", mode)
	}
	f.Fuzz(func(t *testing.T, a, b, c string, mode byte) {
		// JSON has no names that are not valid. Two such halves may be valid together.
		if a == b || b == c || a == c || !utf8.ValidString(a+"."+b+"."+c) || len(a)+len(b)+len(c) > 1<<10 {
			return
		}
		to := func(root, name string) object {
			if mode %= 3; mode < 2 {
				name = strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
			}
			if mode == 0 {
				name = url.PathEscape(name)
			}
			return object{"$ref": "#/" + root + "/" + name}
		}
		get := object{"parameters": []any{to("parameters", c)}, "responses": object{
			"200": object{"description": "OK", "schema": to("definitions", a)}, "400": to("responses", b),
		}}
		doc := object{
			"swagger": "2.0", "info": object{"title": "t", "version": "v"}, "paths": object{"/apis/own.example.com/v1/x": object{"get": get}},
			"definitions": object{
				a: object{"description": "first", "properties": object{"b": to("definitions", b), "none": to("definitions", a+b+c+"-")}},
				b: object{"description": "second", "items": to("definitions", c)}, c: object{"description": "third", "allOf": []any{to("definitions", a)}},
			},
			"parameters": object{c: object{"name": "p", "in": "query", "type": "string"}},
			"responses":  object{b: object{"description": "bad", "schema": to("definitions", b)}},
		}
		s := newStage(t)
		s.Set(scene.Home, serving(define("apps/v1", "local")))
		s.Set("own", only("/openapi/v2", saying(http.StatusOK, string(must.Get(json.Marshal(doc))(t))), saying(http.StatusNotFound, "")))
		s.Claim("own.example.com/v1", "own", 100, 10)
		var home atomic.Pointer[localState]
		must.Do(t, s.o.askLocal(t.Context(), "", &home))
		st, _, err := s.o.ask(t.Context(), &state{}, s.Table().Entries())
		own := []schema.GroupVersion{s.Table().Entries()[0].GroupVersion}
		v := st.versions[own[0]]
		must.Be(t, mode != 0 || v.v3 != nil, "refused: %v", err)
		if v.v3 == nil {
			return
		}
		alone := &inputs{sources: []input{{name: "own", spec: v.v2, own: own}}}
		beside := &inputs{sources: alone.sources, local: home.Load().spec, remote: own}
		for name, p := range map[string]*packed{"v3": v.v3.json, "alone": s.o.merge(alone, nil).json, "beside": s.o.merge(beside, nil).json} {
			body := p.open()
			var doc object
			must.Do(t, json.Unmarshal(body, &doc))
			leadsSomewhere(t, name, doc, doc)
			for _, want := range []string{"first", "second", "third"} {
				check.Same(t, true, mode != 0 || strings.Contains(string(body), `"description":"`+want+`"`), "%s: the %s definition is there: %s", name, want, body)
			}
		}
	})
}

// leadsSomewhere checks all references below v, a part of doc.
func leadsSomewhere(t *testing.T, name string, doc object, v any) {
	t.Helper()
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			leadsSomewhere(t, name, doc, item)
		}
	case object:
		for _, item := range v {
			leadsSomewhere(t, name, doc, item)
		}
		ref, ok := v["$ref"].(string)
		if !ok {
			return
		}
		at := any(doc)
		for token := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") { // plain names need no escapes
			parent, _ := at.(object)
			at = parent[token]
		}
		check.Same(t, true, at != nil, "%s: %q leads nowhere in %v", name, ref, doc)
	}
}

// Of odd names that are alike when plain, it is always the same that gets the plain name: documents
// of replicas, and of one replica's next merge, would otherwise differ and be fetched anew.
func TestOddNamesInOrder(t *testing.T) {
	for range 50 {
		got := renamed(toDefinition, map[string]string{"a/b": "first", "a:b": "second"}, map[string]string{})
		must.Be(t, len(got) == 2 && got["a.b"] == "first", "named otherwise: %v", got)
	}
}

// What kube-apiserver's own aggregator has taken from remotes is not the local apiserver's: paths
// of remote group-versions, definitions that no path of its own uses, kinds that they claim.
func TestRemoteContentInLocal(t *testing.T) {
	kind := func(kinds ...string) (out []any) {
		for _, k := range kinds {
			out = append(out, object{"group": "apps", "version": "v1", "kind": k})
		}
		return out
	}
	ref := func(name string) object { return object{"$ref": "#/definitions/" + name} }
	operation := func(k string, to ...string) object {
		responses := object{}
		for i, name := range to {
			responses[string(rune('2'+i))+"00"] = object{"description": "OK", "schema": ref(name)}
		}
		return object{gvkExtension: kind(k)[0], "responses": responses}
	}
	doc := object{
		"swagger": "2.0", "info": object{"title": "t", "version": "v"},
		"paths": object{
			"/apis/apps/v1/deployments/{name}":       object{"get": operation("Deployment", "z.v1.Deployment", "a.Status"), "put": operation("Deployment", "z.v1.Deployment")},
			"/apis/remote.example.com/v1/corrupters": object{"get": operation("Deployment", "corrupt", "thief")},
		},
		"definitions": object{
			"z.v1.Deployment":     object{"properties": object{"metadata": ref("a.Meta"), "list": ref("z.v1.DeploymentList")}, gvkExtension: kind("Deployment")},
			"z.v1.DeploymentList": object{gvkExtension: kind("DeploymentList")}, "a.Meta": object{gvkExtension: kind("Deployment", "DeploymentList", "Meta")},
			"a.Status": object{gvkExtension: kind("Status", "Deployment")},
			"corrupt":  object{"nullable": true}, "unused": object{"nullable": true}, "thief": object{gvkExtension: kind("Deployment")},
		},
	}
	sw := must.Get(readSpec(must.Get(json.Marshal(doc))(t)))(t)
	out := filterLocal(sw, []schema.GroupVersion{{Group: "remote.example.com", Version: "v1"}})
	got := map[string]any{}
	for name, d := range out.Definitions {
		got[name] = kindsOf(&d)
	}
	check.Same(t, map[string]any{
		"z.v1.Deployment": kind("Deployment"), "z.v1.DeploymentList": kind("DeploymentList"), "a.Meta": kind("Meta"), "a.Status": kind("Status"),
	}, got, "definitions and their kinds")
	_, ok := out.Paths.Paths["/apis/apps/v1/deployments/{name}"]
	check.Same(t, true, ok && len(out.Paths.Paths) <= 1, "paths: %v", out.Paths.Paths)
}
