package tides

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
)

// object is a JSON object.
type object = map[string]any

// openAPIIndex returns where the document is. The hash must change with the document, which never
// changes within one version of this server.
func (s *server) openAPIIndex(w http.ResponseWriter, _ *http.Request) {
	document := object{"serverRelativeURL": "/openapi/v3" + root + "?hash=1"}
	reply(w, runtime.ContentTypeJSON, object{"paths": object{"apis/" + groupVersion: document}})
}

// openAPI returns what kubectl explain reads.
func (s *server) openAPI(w http.ResponseWriter, _ *http.Request) {
	kind := object{"group": group, "version": "v1", "kind": "Tide"}
	const model = "com.example.tides.v1.Tide"
	status := object{"type": "object", "description": "Status is computed anew for each request.", "properties": object{
		"centimetres": object{"type": "integer", "description": "Centimetres is the height above the mean."},
		"rising":      object{"type": "boolean", "description": "Rising tells whether the water rises."},
		"askedBy":     object{"type": "string", "description": "AskedBy is the user that the front proxy asserts."},
	}}
	reply(w, runtime.ContentTypeJSON, object{
		"openapi": "3.0.0", "info": object{"title": "tides", "version": "v1"},
		"paths": object{root + "/tides/{name}": object{"get": object{
			"operationId": "readTide", "x-kubernetes-action": "get", "x-kubernetes-group-version-kind": kind,
			"responses": object{"200": object{"description": "OK", "content": object{
				runtime.ContentTypeJSON: object{"schema": object{"$ref": "#/components/schemas/" + model}},
			}}},
		}}},
		"components": object{"schemas": object{model: object{
			"type": "object", "description": "Tide is how high the water stands in a harbour.",
			"x-kubernetes-group-version-kind": []object{kind},
			"properties": object{
				"apiVersion": object{"type": "string"},
				"kind":       object{"type": "string"},
				"metadata":   object{"type": "object"},
				"status":     status,
			},
		}}},
	})
}
