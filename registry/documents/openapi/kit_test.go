package openapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

type object = map[string]any

// stage is an OpenAPI in a scene.
type stage struct {
	*scene.Scene
	cfg documents.Config
	o   *OpenAPI
}

// inBubble runs play on a new stage in a synctest bubble.
func inBubble(t *testing.T, play func(t *testing.T, s *stage)) {
	synctest.Test(t, func(t *testing.T) { play(t, newStage(t)) })
}

// host makes server serve kinds, each claimed by an APIService.
func (s *stage) host(server string, kinds ...kind) {
	for _, k := range kinds {
		s.Claim(k.gv, server, 100, 10)
	}
	s.Set(server, serving(kinds...))
}

func newStage(tb testing.TB) *stage {
	s := &stage{Scene: scene.New(tb)}
	s.cfg = s.Config()
	s.make()
	return s
}

func (s *stage) make() {
	s.Helper()
	s.o = New(s.cfg)
	s.From, s.Built = s.o, s.o.Touch
}

// settle opens the stage and waits until every server was asked.
func (s *stage) settle() {
	must.Run(s, s.o.Run)
	s.Pass(500 * time.Millisecond)
}

// kind is a part of a server's documents: a kind with a path and a definition.
type kind struct {
	gv, name, definition, description string
	gvks                              any
}

// define returns the kind Thing of a group-version.
func define(gv, description string) kind {
	group, version, _ := strings.Cut(gv, "/")
	return kind{gv: gv, name: "things", definition: "def." + strings.ReplaceAll(gv, "/", "."), description: description, gvks: []any{object{"group": group, "version": version, "kind": "Thing"}}}
}

func specOf(kinds ...kind) object {
	paths, definitions := object{"/version/": object{"get": object{"responses": object{"200": object{"description": "OK"}}}}}, object{}
	for _, k := range kinds {
		definitions[k.definition] = object{"type": "object", "description": k.description, "x-kubernetes-group-version-kind": k.gvks}
		paths["/apis/"+k.gv+"/"+k.name] = object{"get": object{"operationId": k.gv + k.name, "responses": object{"200": object{
			"description": "OK", "schema": object{"$ref": "#/definitions/" + k.definition},
		}}}}
	}
	return object{"swagger": "2.0", "info": object{"title": "t", "version": "v"}, "paths": paths, "definitions": definitions}
}

// serving answers with all documents of kinds.
func serving(kinds ...kind) http.HandlerFunc {
	v3 := func(k kind) object {
		return object{"openapi": "3.0.0", "info": object{"title": k.description, "version": "v"}, "paths": object{}}
	}
	return func(w http.ResponseWriter, r *http.Request) {
		var doc any
		switch path := r.URL.Path; path {
		case "/openapi/v2":
			doc = specOf(kinds...)
		case "/openapi/v3":
			paths := object{"version": object{"serverRelativeURL": "/openapi/v3/version?hash=V"}}
			for _, k := range kinds {
				b, _ := json.Marshal(v3(k))
				paths["apis/"+k.gv] = object{"serverRelativeURL": "/openapi/v3/apis/" + k.gv + "?hash=" + negotiate.Hash(b)}
			}
			doc = object{"paths": paths}
		default:
			for _, k := range kinds {
				if path == "/openapi/v3/apis/"+k.gv {
					doc = v3(k)
				}
			}
		}
		if doc == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		b, _ := json.Marshal(doc)
		tag := fmt.Sprintf("%q", negotiate.Hash(b))
		if r.URL.Path == "/openapi/v2" {
			w.Header().Set("Etag", tag)
			if r.Header.Get("If-None-Match") == tag {
				w.WriteHeader(http.StatusNotModified)
				return
			}
		}
		_, _ = w.Write(b)
	}
}

// only uses h for one path, and rest for all others.
func only(path string, h, rest http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == path {
			h(w, r)
			return
		}
		rest(w, r)
	}
}

func hanging(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func saying(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	}
}

func TestMain(m *testing.M) { scene.Main(m) }
