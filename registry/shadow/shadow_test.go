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
)

func TestWhyNothingIsKnown(t *testing.T) {
	const why = `customresourcedefinitions.apiextensions.k8s.io is forbidden: User "x" cannot list resource "customresourcedefinitions"`
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":%q,"reason":"Forbidden","code":403}`, why)
	}))
	t.Cleanup(front.Close)
	core, err := corev1.NewForConfig(&rest.Config{Host: front.URL})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Find(t.Context(), core.RESTClient(), []schema.GroupVersion{{Group: "sea.io", Version: "v1"}})
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("%v, want what the apiserver says", err)
	}
}
