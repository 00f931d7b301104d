//go:build e2e

package differential

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// place returns an index's entry for fresh.example.com/v1, which contains the hash of the document.
func place(index string) string {
	_, after, _ := strings.Cut(index, `"apis/fresh.example.com/v1":`)
	item, _, _ := strings.Cut(after, "}")
	return item
}

// TestFreshCRDs shows that changes of a CRD are listed as soon as kube-apiserver lists them, also
// when no APIService appears or disappears.
func TestFreshCRDs(t *testing.T) {
	w := newWorld(t)
	crds := w.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	patch := func(name, body string) {
		t.Helper()
		must.Get(crds.Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}))(t)
	}
	for _, step := range []struct {
		what string
		do   func()
		// mark is in the aggregated document after the step, or gone from it.
		mark string
		gone bool
		// described, unless empty, is in the OpenAPI document of fresh.example.com/v1 afterwards.
		described string
	}{
		{"a new group", func() { w.define(t, fmt.Sprintf(crd, "crontab", "fresh.example.com", "CronTab", "ct")) }, `"resource":"crontabs"`, false, "com.example.fresh.v1.CronTab"},
		{"a second kind of a known group-version", func() { w.define(t, fmt.Sprintf(crd, "gadget", "fresh.example.com", "Gadget", "gd")) }, `"resource":"gadgets"`, false, "com.example.fresh.v1.Gadget"},
		{"a short name", func() { patch("gadgets.fresh.example.com", `{"spec":{"names":{"shortNames":["gd","gad"]}}}`) }, `"gad"`, false, ""},
		{"a category", func() { patch("gadgets.fresh.example.com", `{"spec":{"names":{"categories":["toys"]}}}`) }, `"toys"`, false, ""},
		{"a deletion", func() {
			must.Do(t, crds.Delete(t.Context(), "gadgets.fresh.example.com", metav1.DeleteOptions{}))
		}, `"resource":"gadgets"`, true, ""},
	} {
		shown := func(e cluster.Endpoint, path, mark string) func() (bool, string) {
			return func() (bool, string) {
				a := w.ask(t, e, path, http.Header{"Accept": {"application/json" + asV2 + ",application/json"}})
				return strings.Contains(a.Body, mark) != step.gone, fmt.Sprintf("%d %.2000s", a.Code, a.Body)
			}
		}
		step.do()
		suite.Eventually(t, 30*time.Second, step.what+" is listed by kube-apiserver", shown(w.Endpoint(), "/apis", step.mark))
		lag := suite.Eventually(t, 30*time.Second, step.what+" is listed by Fairlead", shown(w.front.Endpoint, "/apis", step.mark))
		// Three of the pauses after an event, on a busy machine. Polling alone takes up to two
		// seconds, and one on average.
		if lag > 500*time.Millisecond {
			t.Errorf("%s: listed %s after kube-apiserver", step.what, lag)
		}
		if step.described != "" {
			const path = "/openapi/v3/apis/fresh.example.com/v1"
			suite.Eventually(t, 30*time.Second, step.what+" is described by kube-apiserver", shown(w.Endpoint(), path, step.described))
			// A busy kube-apiserver may describe it only after the five requests that follow the
			// event. From then on the index is requested every three seconds.
			suite.Eventually(t, 4*time.Second, step.what+" is described", func() (bool, string) {
				theirs, ours := place(w.ask(t, w.Endpoint(), "/openapi/v3", nil).Body), place(w.ask(t, w.front.Endpoint, "/openapi/v3", nil).Body)
				return ours == theirs && ours != "", ours + ", kube-apiserver's " + theirs
			})
		}
	}
}
