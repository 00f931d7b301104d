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

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A definition that is deleted between the list and the get shadows nothing, and of a group with
// very many not all are read.
func TestFind(t *testing.T) {
	names := []string{"gone.sea.io", "trees.wood.io", "boats.sea.io"}
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
		case !one:
			fmt.Fprintf(w, `{"items":[{"metadata":{"name":"%s"}}]}`, strings.Join(names, `"}},{"metadata":{"name":"`))
		case name == "gone.sea.io":
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		default:
			read++
			fmt.Fprintf(w, `{"spec":{"group":%q,"versions":[{"name":"v1","served":true},{"name":"v2","served":true}]}}`, group) // nobody claims v2
		}
	}))
	t.Cleanup(front.Close)
	core := must.Get(corev1.NewForConfig(&rest.Config{Host: front.URL, QPS: -1}))(t)
	sea, air := schema.GroupVersion{Group: "sea.io", Version: "v1"}, schema.GroupVersion{Group: "air.io", Version: "v1"}
	found, err := Find(t.Context(), core.RESTClient(), []schema.GroupVersion{sea, air})
	if err != nil || found[sea] != "boats.sea.io" || found[air] != "many0.air.io" || len(found) != 2 {
		t.Errorf("%v, %v", found, err)
	}
	if read != mostDefinitions-1 { // including the deleted one
		t.Errorf("%d were read", read)
	}
	names = []string{"boats.sea.io", "broken.sea.io"}
	for _, forbidden = range []bool{false, true} {
		if found, err := Find(t.Context(), core.RESTClient(), []schema.GroupVersion{sea}); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("what cannot be read is no error of the apiserver's: %v, %v", found, err)
		}
	}
}
