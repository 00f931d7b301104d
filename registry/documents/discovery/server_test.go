package discovery

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
)

func TestMain(m *testing.M) {
	// Kubernetes' own implementation, which the tests compare with, logs each group-version.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// resources is a version with some resources.
func resources(version string, names ...string) apidiscoveryv2.APIVersionDiscovery {
	v := apidiscoveryv2.APIVersionDiscovery{Version: version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, n := range names {
		v.Resources = append(v.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: n, Scope: apidiscoveryv2.ScopeNamespace, ResponseKind: &metav1.GroupVersionKind{Kind: n}, Verbs: []string{"list"}})
	}
	return v
}

// listOf parses words of the form group/version=resource,resource.
func listOf(words ...string) *apidiscoveryv2.APIGroupDiscoveryList {
	list := &apidiscoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}}
	for _, w := range words {
		gv, names, _ := strings.Cut(w, "=")
		group, version, _ := strings.Cut(gv, "/")
		v := resources(version, strings.FieldsFunc(names, func(r rune) bool { return r == ',' })...)
		at := slices.IndexFunc(list.Items, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == group })
		if at < 0 {
			at = len(list.Items)
			list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: group}})
		}
		list.Items[at].Versions = append(list.Items[at].Versions, v)
	}
	return list
}

// serving answers with aggregated documents as kube-apiserver does.
func serving(list *apidiscoveryv2.APIGroupDiscoveryList) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api" && !strings.Contains(r.Header.Get("Accept"), "apidiscovery") {
			_ = json.NewEncoder(w).Encode(metav1.APIVersions{Versions: []string{"v1"}})
			return
		}
		answer := list
		if r.URL.Path == "/api" {
			answer = listOf("/v1=pods")
		}
		b, _ := json.Marshal(answer)
		w.Header().Set("Etag", strconv.Quote(negotiate.Hash(b)))
		if r.Header.Get("If-None-Match") == strconv.Quote(negotiate.Hash(b)) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", aggregatedJSON)
		_, _ = w.Write(b)
	}
}

// legacyServing serves only APIResourceLists, and answers other requests with code.
func legacyServing(code int, words ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, word := range words {
			gv, names, _ := strings.Cut(word, "=")
			if r.URL.Path != "/apis/"+gv {
				continue
			}
			list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv}
			for name := range strings.SplitSeq(names, ",") {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: name, Kind: name, Namespaced: true, Verbs: []string{"list"}})
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
			return
		}
		w.WriteHeader(code)
	}
}

// hanging never answers.
func hanging(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func saying(code int, contentType string, b []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		_, _ = w.Write(b)
	}
}

// versions parses the versions of a document.
func versions(words []string) map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery {
	out := map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery{}
	list := listOf(words...)
	for i := range list.Items {
		g := &list.Items[i]
		for j := range g.Versions {
			out[schema.GroupVersion{Group: g.Name, Version: g.Versions[j].Version}] = &g.Versions[j]
		}
	}
	return out
}
