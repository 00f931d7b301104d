//go:build e2e

package e2e

import (
	"cmp"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/client-go/discovery"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testDiscovery compares all forms of discovery with kube-apiserver's own.
func testDiscovery(t *testing.T, w *world) {
	fresh := func(t *testing.T) (through, past caller) {
		through, past = w.admin(t), w.as(t, w.EndpointOf(len(w.APIServers)-1), w.Admin()) // the server behind Fairlead, because documents contain its address
		through.cache, past.cache = t.TempDir(), t.TempDir()
		return through, past
	}
	same := func(args ...string) func(*testing.T) {
		return func(t *testing.T) {
			through, past := fresh(t)
			want := past.run(t, args...)
			if got := through.run(t, args...); got != want {
				t.Errorf("kubectl %s (- directly, + here):\n%s", strings.Join(args, " "), gocmp.Diff(want, got))
			}
		}
	}
	// Other suites may define resources between the two calls, so the comparison is limited to
	// groups that no case changes.
	for _, group := range []string{"", "apps", "wardle.example.com", "apiregistration.k8s.io"} {
		t.Run("api-resources of "+cmp.Or(group, "core"), same("api-resources", "--api-group="+group, "-o", "wide", "--sort-by=name"))
	}
	for _, path := range []string{"/apis/wardle.example.com", "/apis/wardle.example.com/v1beta1", "/apis/apps/v1", "/api", "/version", "/livez", "/openapi/v3/apis/wardle.example.com/v1beta1", "/openapi/v3/apis/apps/v1"} {
		t.Run(strings.ReplaceAll(path[1:], "/", " "), same("get", "--raw", path))
	}
	t.Run("api-versions and cluster-info", func(t *testing.T) {
		through, _ := fresh(t)
		out := through.run(t, "api-versions") + through.run(t, "cluster-info")
		for _, want := range []string{"apps/v1\n", "apiregistration.k8s.io/v1\n", "wardle.example.com/v1alpha1\n", "wardle.example.com/v1beta1\n", w.server.URL} {
			if !strings.Contains(out, want) {
				t.Errorf("no %s in:\n%s", want, out)
			}
		}
	})
	t.Run("legacy documents", func(t *testing.T) { testPreferred(t, w, true) })
	t.Run("aggregated documents", func(t *testing.T) { testPreferred(t, w, false) })
	t.Run("OpenAPI v2 holds the remote's definitions", func(t *testing.T) {
		client := discovery.NewDiscoveryClientForConfigOrDie(w.server.RESTConfig(w.Admin()))
		suite.Eventually(t, time.Minute, "the document holds them", func() (bool, string) { // it is merged in the background
			for _, d := range must.Get(client.OpenAPISchema())(t).GetDefinitions().GetAdditionalProperties() {
				if strings.HasSuffix(d.GetName(), ".wardle.v1beta1.Flunder") {
					return true, ""
				}
			}
			return false, "no Flunder"
		})
	})
}

// testPreferred lets client-go find the preferred version of every resource, from either form of
// the documents.
func testPreferred(t *testing.T, w *world, legacy bool) {
	client := discovery.NewDiscoveryClientForConfigOrDie(w.server.RESTConfig(w.Admin()))
	client.UseLegacyDiscovery = legacy
	lists, err := client.ServerPreferredResources()
	if !discovery.IsGroupDiscoveryFailedError(err) { // a case beside this one has an APIService without a Service
		must.Do(t, err)
	}
	found := map[string]bool{}
	for _, l := range lists {
		for _, r := range l.APIResources {
			found[l.GroupVersion+" "+r.Kind] = true
		}
	}
	for _, want := range []string{"v1 Pod", "apps/v1 Deployment", "wardle.example.com/v1beta1 Flunder", "wardle.example.com/v1alpha1 Fischer"} {
		if !found[want] {
			t.Errorf("preferred resources lack %s", want)
		}
	}
}
