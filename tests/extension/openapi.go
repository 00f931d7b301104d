package extension

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// openAPIV2 answers with the widgets' Swagger document.
func (s *Server) openAPIV2(w http.ResponseWriter, r *http.Request) {
	paths, definitions := object{}, object{}
	for _, gv := range s.versions {
		paths[widgetPath(gv)] = object{"get": operation(gv, object{"schema": object{"$ref": "#/definitions/" + modelName(gv)}, "description": "OK"})}
		definitions[modelName(gv)] = widgetSchema(gv)
	}
	s.writeDocument(w, r, "application/json", object{"swagger": "2.0", "info": info(), "paths": paths, "definitions": definitions})
}

func info() object { return object{"title": "extension", "version": "v0"} }

// operation describes the get of a widget.
func operation(gv schema.GroupVersion, answer object) object {
	return object{
		"operationId": "read" + strings.NewReplacer(".", "", "-", "", "/", "").Replace(gv.String()) + "NamespacedWidget",
		"responses":   object{"200": answer}, "x-kubernetes-action": "get", "x-kubernetes-group-version-kind": gvk(gv),
	}
}

// openAPIV3Index lists the documents with their hashes.
func (s *Server) openAPIV3Index(w http.ResponseWriter, r *http.Request) {
	paths := object{}
	for _, gv := range s.versions {
		_, hash := encode(v3Document(gv))
		paths["apis/"+gv.String()] = object{"serverRelativeURL": "/openapi/v3/apis/" + gv.String() + "?hash=" + hash}
	}
	s.writeDocument(w, r, "application/json", object{"paths": paths})
}

// openAPIV3 answers with one group-version's document; one that is requested by hash is immutable.
func (s *Server) openAPIV3(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.EscapedPath(), "/openapi/v3/apis/")
	for _, gv := range s.versions {
		if gv.String() == name {
			if r.URL.Query().Get("hash") != "" {
				w.Header().Set("Cache-Control", "public, immutable")
			}
			s.writeDocument(w, r, "application/json", v3Document(gv))
			return
		}
	}
	writeStatus(w, http.StatusNotFound, "no such document")
}

func v3Document(gv schema.GroupVersion) object {
	content := object{"application/json": object{"schema": object{"$ref": "#/components/schemas/" + modelName(gv)}}}
	return object{
		"openapi": "3.0.0", "info": info(),
		"paths":      object{widgetPath(gv): object{"get": operation(gv, object{"description": "OK", "content": content})}},
		"components": object{"schemas": object{modelName(gv): widgetSchema(gv)}},
	}
}

func widgetSchema(gv schema.GroupVersion) object {
	return object{
		"type": "object", "description": "Widget is what the extension server of the tests stores.",
		"properties": object{
			"apiVersion": object{"type": "string"}, "kind": object{"type": "string"}, "metadata": object{"type": "object"},
			"spec": object{"type": "object", "description": "Spec is what the widget should be.", "properties": object{"payload": object{"type": "string"}}},
		},
		"x-kubernetes-group-version-kind": []object{gvk(gv)},
	}
}

func widgetPath(gv schema.GroupVersion) string {
	return "/apis/" + gv.String() + "/namespaces/{namespace}/widgets/{name}"
}

func gvk(gv schema.GroupVersion) object {
	return object{"group": gv.Group, "version": gv.Version, "kind": "Widget"}
}

// modelName is the group reversed, as Kubernetes names its models: com.example.widgets.v1.Widget.
func modelName(gv schema.GroupVersion) string {
	parts := strings.Split(gv.Group, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + gv.Version + ".Widget"
}
