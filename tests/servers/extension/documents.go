package extension

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// documents are the forms of discovery. All are made of the aggregated one.
type documents struct {
	aggregated apidiscoveryv2.APIGroupDiscoveryList
	groups     *metav1.APIGroupList
	resources  map[schema.GroupVersion]*metav1.APIResourceList
}

// newDocuments lists groups and versions in the order of Config.
func newDocuments(versions []schema.GroupVersion) documents {
	d := documents{aggregated: apidiscoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}}}
	for _, gv := range versions {
		of := func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == gv.Group }
		if !slices.ContainsFunc(d.aggregated.Items, of) {
			d.aggregated.Items = append(d.aggregated.Items, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: gv.Group}})
		}
		g := &d.aggregated.Items[slices.IndexFunc(d.aggregated.Items, of)]
		g.Versions = append(g.Versions, aggregatedVersion(gv))
	}
	d.groups, d.resources, _ = discovery.SplitGroupsAndResources(d.aggregated) // it fails for stale versions
	d.groups.TypeMeta = metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}
	for _, list := range d.resources {
		list.TypeMeta = metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}
	}
	return d
}

func aggregatedVersion(gv schema.GroupVersion) apidiscoveryv2.APIVersionDiscovery {
	kind := func(name string) *metav1.GroupVersionKind {
		return &metav1.GroupVersionKind{Group: gv.Group, Version: gv.Version, Kind: name}
	}
	widgets := apidiscoveryv2.APIResourceDiscovery{
		Resource: "widgets", ResponseKind: kind("Widget"), Scope: apidiscoveryv2.ScopeNamespace,
		SingularResource: "widget", ShortNames: []string{"wd"}, Verbs: []string{"create", "delete", "get", "list", "watch"},
	}
	for _, sub := range connectSubresources() {
		widgets.Subresources = append(widgets.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: sub, ResponseKind: kind("WidgetConnectOptions"), Verbs: []string{"create", "get"},
		})
	}
	return apidiscoveryv2.APIVersionDiscovery{
		Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: []apidiscoveryv2.APIResourceDiscovery{widgets},
	}
}

// connectSubresources echo the body of a request.
func connectSubresources() []string { return []string{"console", "echo", "exec", "portforward", "vnc"} }

// groups answers /apis. It looks for aggregated discovery anywhere in Accept: every client that lists it prefers it.
func (s *Server) groups(w http.ResponseWriter, r *http.Request) {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if asks := strings.Contains(accept, "as=APIGroupDiscoveryList") && strings.Contains(accept, "v=v2") && strings.Contains(accept, "application/json"); asks && !s.cfg.LegacyDiscovery {
		s.writeDocument(w, r, aggregatedType, s.documents.aggregated)
		return
	}
	s.writeDocument(w, r, "application/json", s.documents.groups)
}

// apis answers everything below /apis/.
func (s *Server) apis(w http.ResponseWriter, r *http.Request, segments []string) {
	i := slices.IndexFunc(s.documents.groups.Groups, func(g metav1.APIGroup) bool { return g.Name == segments[0] })
	if i < 0 {
		writeStatus(w, http.StatusNotFound, "no such group")
		return
	}
	if len(segments) == 1 {
		g := s.documents.groups.Groups[i]
		g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		s.writeDocument(w, r, "application/json", g)
		return
	}
	gv := schema.GroupVersion{Group: segments[0], Version: segments[1]}
	switch list := s.documents.resources[gv]; {
	case list == nil:
		writeStatus(w, http.StatusNotFound, "no such version")
	case len(segments) == 2:
		s.writeDocument(w, r, "application/json", list)
	default:
		call{gv: gv, store: s.stores[gv.Group]}.serve(w, r, segments[2:])
	}
}

// writeDocument sends a document with its ETag, or 304.
func (s *Server) writeDocument(w http.ResponseWriter, r *http.Request, contentType string, doc any) {
	b, hash := encode(doc)
	w.Header().Set("ETag", `"`+hash+`"`)
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Content-Type", contentType)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
}

func encode(doc any) (b []byte, hash string) {
	b, err := json.Marshal(doc)
	if err != nil {
		panic(err) // cannot fail for our own types
	}
	return b, fmt.Sprintf("%X", sha512.Sum512(b))
}

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
