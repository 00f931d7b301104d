//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
				t.Errorf("kubectl %s (- directly, + here):\n%s", strings.Join(args, " "), cmp.Diff(want, got))
			}
		}
	}
	// Other suites may define resources between the two calls, so the comparison is limited to
	// groups that no case changes.
	for _, group := range []string{"", "apps", "wardle.example.com", "apiregistration.k8s.io", "rbac.authorization.k8s.io"} {
		name := group
		if name == "" {
			name = "core"
		}
		t.Run("api-resources "+name, same("api-resources", "--api-group="+group, "-o", "wide", "--sort-by=name"))
	}
	for name, path := range map[string]string{
		"group":                      "/apis/wardle.example.com",
		"remote group-version":       "/apis/wardle.example.com/v1beta1",
		"other remote group-version": "/apis/wardle.example.com/v1alpha1",
		"local group":                "/apis/apps",
		"local group-version":        "/apis/apps/v1",
		"core versions":              "/api",
		"core resources":             "/api/v1",
		"version":                    "/version",
		"healthz":                    "/healthz",
		"livez":                      "/livez",
		"OpenAPI of a remote":        "/openapi/v3/apis/wardle.example.com/v1beta1",
		"OpenAPI of a local":         "/openapi/v3/apis/apps/v1",
	} {
		t.Run("raw "+name, same("get", "--raw", path))
	}
	t.Run("api-versions", func(t *testing.T) {
		through, _ := fresh(t)
		out := through.run(t, "api-versions")
		for _, want := range []string{"v1", "apps/v1", "apiregistration.k8s.io/v1", "wardle.example.com/v1alpha1", "wardle.example.com/v1beta1"} {
			if !strings.Contains("\n"+out, "\n"+want+"\n") {
				t.Errorf("api-versions shows no %s:\n%s", want, out)
			}
		}
	})
	t.Run("version", func(t *testing.T) {
		through, _ := fresh(t)
		if out := through.run(t, "version"); !strings.Contains(out, "Server Version: v1.") {
			t.Errorf("version shows no server version:\n%s", out)
		}
	})
	t.Run("cluster-info", func(t *testing.T) {
		through, _ := fresh(t)
		if out := through.run(t, "cluster-info"); !strings.Contains(out, w.server.URL) {
			t.Errorf("cluster-info shows no %s:\n%s", w.server.URL, out)
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
