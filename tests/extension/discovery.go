package extension

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// asksAggregated reports whether r accepts aggregated discovery. It looks anywhere in Accept: every
// client that lists it prefers it.
func asksAggregated(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		if strings.Contains(accept, "as=APIGroupDiscoveryList") && strings.Contains(accept, "v=v2") && strings.Contains(accept, "application/json") {
			return true
		}
	}
	return false
}

// groups answers /apis.
func (s *Server) groups(w http.ResponseWriter, r *http.Request) {
	if asksAggregated(r) && !s.cfg.LegacyDiscovery {
		s.writeDocument(w, r, aggregatedType, s.aggregated())
		return
	}
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, name := range s.groupNames() {
		list.Groups = append(list.Groups, s.group(name))
	}
	s.writeDocument(w, r, "application/json", list)
}

// groupNames returns the served groups in the order of Config.
func (s *Server) groupNames() []string {
	var names []string
	for _, gv := range s.versions {
		if !slices.Contains(names, gv.group) {
			names = append(names, gv.group)
		}
	}
	return names
}

func (s *Server) group(name string) metav1.APIGroup {
	g := metav1.APIGroup{Name: name}
	for _, gv := range s.versions {
		if gv.group == name {
			g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.version})
		}
	}
	g.PreferredVersion = g.Versions[0]
	return g
}

func (s *Server) aggregated() apidiscoveryv2.APIGroupDiscoveryList {
	list := apidiscoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
	}
	for _, name := range s.groupNames() {
		g := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, gv := range s.versions {
			if gv.group == name {
				g.Versions = append(g.Versions, aggregatedVersion(gv))
			}
		}
		list.Items = append(list.Items, g)
	}
	return list
}

func aggregatedVersion(gv groupVersion) apidiscoveryv2.APIVersionDiscovery {
	kind := func(name string) *metav1.GroupVersionKind {
		return &metav1.GroupVersionKind{Group: gv.group, Version: gv.version, Kind: name}
	}
	widgets := apidiscoveryv2.APIResourceDiscovery{
		Resource: "widgets", ResponseKind: kind("Widget"), Scope: apidiscoveryv2.ScopeNamespace,
		SingularResource: "widget", ShortNames: []string{"wd"}, Verbs: widgetVerbs(),
	}
	for _, sub := range connectSubresources() {
		widgets.Subresources = append(widgets.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: sub, ResponseKind: kind("WidgetConnectOptions"), Verbs: connectVerbs(),
		})
	}
	return apidiscoveryv2.APIVersionDiscovery{
		Version: gv.version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: []apidiscoveryv2.APIResourceDiscovery{widgets},
	}
}

func resourceList(gv groupVersion) metav1.APIResourceList {
	list := metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: gv.String(),
		APIResources: []metav1.APIResource{{
			Name: "widgets", SingularName: "widget", ShortNames: []string{"wd"}, Kind: "Widget", Namespaced: true, Verbs: widgetVerbs(),
		}},
	}
	for _, sub := range connectSubresources() {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: "widgets/" + sub, Kind: "WidgetConnectOptions", Namespaced: true, Verbs: connectVerbs(),
		})
	}
	return list
}

func widgetVerbs() metav1.Verbs {
	return metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "watch"}
}

func connectVerbs() metav1.Verbs { return metav1.Verbs{"create", "get"} }

// connectSubresources echo the body of a request.
func connectSubresources() []string { return []string{"console", "echo", "exec", "portforward", "vnc"} }

// apis answers everything below /apis/.
func (s *Server) apis(w http.ResponseWriter, r *http.Request, segments []string) {
	store := s.stores[segments[0]]
	if store == nil {
		writeStatus(w, http.StatusNotFound, "no such group")
		return
	}
	if len(segments) == 1 {
		g := s.group(segments[0])
		g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		s.writeDocument(w, r, "application/json", g)
		return
	}
	gv := groupVersion{segments[0], segments[1]}
	if !slices.Contains(s.versions, gv) {
		writeStatus(w, http.StatusNotFound, "no such version")
		return
	}
	if len(segments) == 2 {
		s.writeDocument(w, r, "application/json", resourceList(gv))
		return
	}
	s.widgets(w, r, call{gv: gv, store: store}, segments[2:])
}

// writeDocument sends a document with its ETag, or 304.
func (s *Server) writeDocument(w http.ResponseWriter, r *http.Request, contentType string, doc any) {
	b, hash := encode(doc)
	etag := `"` + hash + `"`
	w.Header().Set("ETag", etag)
	w.Header().Set("Vary", "Accept")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", contentType)
	_, _ = w.Write(b)
}

// encode returns a document and its hash.
func encode(doc any) (b []byte, hash string) {
	b, err := json.Marshal(doc)
	if err != nil {
		panic(err) // cannot fail for our own types
	}
	return b, fmt.Sprintf("%X", sha512.Sum512(b))
}
