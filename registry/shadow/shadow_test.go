package shadow

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A definition that is deleted between the list and the get shadows nothing, nor does a version
// that is not served, and of a group with very many not all are read.
func TestFind(t *testing.T) {
	names := []string{"gone.sea.io", "trees.wood.io", "boats.sea.io", "anchors.sea.io"}
	for i := range mostDefinitions {
		names = append(names, fmt.Sprintf("many%d.air.io", i))
	}
	const why = `customresourcedefinitions.apiextensions.k8s.io is forbidden: User "x" cannot list resource "customresourcedefinitions"`
	read, forbidden := 0, false
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		name, one := strings.CutPrefix(r.URL.Path, definitions+"/")
		_, group, _ := strings.Cut(name, ".")
		switch {
		case !one && forbidden, name == "broken.sea.io":
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"reason":"Forbidden","code":403}`, why)
		case !one && (!strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") || r.URL.Query().Get("resourceVersion") != "0"):
			http.Error(w, "this would be 20 MB", http.StatusBadRequest)
		case !one:
			fmt.Fprintf(w, `{"items":[{"metadata":{"name":"%s"}}]}`, strings.Join(names, `"}},{"metadata":{"name":"`))
		case name == "gone.sea.io":
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		case name == "garbage.sea.io":
			fmt.Fprint(w, `{"spec":`)
		default:
			read++ // nobody claims v2
			fmt.Fprintf(w, `{"spec":{"group":%q,"versions":[{"name":"v0","served":false},{"name":"v1","served":true},{"name":"v2","served":true}]}}`, group)
		}
	}))
	t.Cleanup(front.Close)
	core := must.Get(corev1.NewForConfig(&rest.Config{Host: front.URL, QPS: -1}))(t)
	sea, air := schema.GroupVersion{Group: "sea.io", Version: "v1"}, schema.GroupVersion{Group: "air.io", Version: "v1"}
	found := must.Get(Find(t.Context(), core.RESTClient(), []schema.GroupVersion{sea, air, {Group: "sea.io", Version: "v0"}}))(t)
	check.Same(t, map[schema.GroupVersion]string{sea: "anchors.sea.io", air: "many0.air.io"}, found, "definitions")
	check.Same(t, mostDefinitions-1, read, "definitions that were read, beside the deleted one")
	for last, want := range map[string]string{"garbage.sea.io": "unexpected end of JSON", "broken.sea.io": why, "": why} {
		names, forbidden = []string{"boats.sea.io", last}, last == ""
		check.Fault(t, want, check.Err(Find(t.Context(), core.RESTClient(), []schema.GroupVersion{sea})), "%q", last)
	}
}
