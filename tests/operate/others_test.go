//go:build e2e

package operate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testOthers tests the shipped roles that are not bound by default, each with an account that has
// it and one that does not. Every shipped role is tested here or by testRoles.
func testOthers(t *testing.T, w *world, grants []grant) {
	tried := map[string]func(*testing.T, *world, []grant){
		"system:fairlead-viewer":  testViewer,
		"system:fairlead-tap":     testTapRole,
		"system:fairlead-metrics": testMetricsRole,
		"system:fairlead-ca-from": testBundleRole,
	}
	for name, test := range tried {
		t.Run("with and without "+name, func(t *testing.T) { test(t, w, grants) })
	}
	tested := map[string]bool{}
	for name := range tried {
		tested[name] = true
	}
	for _, g := range grants {
		tested[g.role] = true
	}
	delete(tested, configMapReader)              // Kubernetes ships it
	tested["system:fairlead-impersonate"] = true // by tests/managed, rule by rule
	shipped := map[string]bool{}
	for _, s := range shapes() {
		for _, o := range objects(t, w.compose(t, s)) {
			if o.GetKind() == "Role" || o.GetKind() == "ClusterRole" {
				shipped[o.GetName()] = true
			}
		}
	}
	if got, want := slices.Sorted(maps.Keys(tested)), slices.Sorted(maps.Keys(shipped)); !slices.Equal(got, want) {
		t.Errorf("tested: %q, shipped: %q", got, want)
	}
}

func testViewer(t *testing.T, w *world, _ []grant) {
	may, mayNot := w.bound(t, "system:fairlead-viewer"), suite.Token(t, w.core, "operate", "stranger")
	for _, path := range []string{"/fairlead", "/fairlead/", "/fairlead/status", "/fairlead/explain?path=/api/v1/pods", "/fairlead/apiservice/v9.batch", "/fairlead/style.css"} {
		w.serves(t, 15*time.Second, w.front.Endpoint, path, may)
		w.wants(t, 403, w.front.Endpoint, path, mayNot)
	}
}

// testTapRole watches requests, which viewers of the pages may not.
func testTapRole(t *testing.T, w *world, _ []grant) {
	may, viewer := w.bound(t, "system:fairlead-tap"), w.bound(t, "system:fairlead-viewer")
	const tap = "/fairlead/tap?path=/version&seconds=1"
	w.serves(t, 15*time.Second, w.front.Endpoint, tap, may)
	w.wants(t, 403, w.front.Endpoint, "/fairlead/status", may)
	w.serves(t, 15*time.Second, w.front.Endpoint, "/fairlead/status", viewer)
	w.wants(t, 403, w.front.Endpoint, tap, viewer)
}

func testMetricsRole(t *testing.T, w *world, _ []grant) {
	may := w.bound(t, "system:fairlead-metrics")
	suite.Eventually(t, 15*time.Second, "scraped", func() (bool, string) {
		code, body := w.get(t, w.front.Admin, "/metrics", may)
		return code == 200 && strings.Contains(body, "fairlead_"), fmt.Sprint(code, body)
	})
	w.wants(t, 403, w.front.Admin, "/status", may)
	w.wants(t, 403, w.front.Admin, "/metrics", suite.Token(t, w.core, "operate", "stranger"))
}

// testBundleRole takes a bundle from a ConfigMap, in whose namespace the shipped account has the
// role and account unbound does not.
func testBundleRole(t *testing.T, w *world, grants []grant) {
	base := slices.DeleteFunc(slices.Clone(grants), func(g grant) bool { return g.component != "" })
	front := must.Get(w.restricted(t, "unbound", base))(t)
	const name = "lent"
	s := extension.Start(t, extension.Config{GroupVersions: []string{name + ".example.com/v1"}, Names: []string{name + "." + name + ".svc"}, CA: w.ca})
	w.apply(t, fmt.Sprintf(lent, portOf(s), strings.ReplaceAll(string(w.ca.PEM()), "\n", "\\n")))
	w.apply(t, fmt.Sprintf(lentService, portOf(s))) // now that the bundle may be read
	w.serves(t, 30*time.Second, w.front.Endpoint, "/apis/lent.example.com/v1", "")
	suite.Eventually(t, 10*time.Second, "forbidden", func() (bool, string) {
		log := w.logged(t, front)
		return strings.Contains(log, `resource \"configmaps\"`) && strings.Contains(log, `namespace \"lent\"`), log
	})
	w.wants(t, 503, front.Endpoint, "/apis/lent.example.com/v1", "") // without its bundle
}

const lent = `
{apiVersion: v1, kind: Namespace, metadata: {name: lent}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: lent, name: lent}, spec: {type: ExternalName, externalName: localhost, ports: [{port: %[1]s}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {namespace: lent, name: bundle}, data: {ca.crt: "%[2]s"}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: fairlead-ca-from, namespace: lent}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:fairlead-ca-from"}
subjects: [{kind: ServiceAccount, name: fairlead, namespace: kube-system}]
`

const lentService = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.lent.example.com, annotations: {fairlead.dev/ca-from: bundle/ca.crt}}
spec: {group: lent.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 1, service: {namespace: lent, name: lent, port: %s}}
`

// bound makes an account with one of the shipped ClusterRoles and no other, and returns its token.
func (w *world) bound(t *testing.T, role string) string {
	t.Helper()
	name := strings.TrimPrefix(role, "system:")
	w.apply(t, fmt.Sprintf(`
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: operate, name: %[1]s}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operate-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[2]q}
subjects: [{kind: ServiceAccount, namespace: operate, name: %[1]s}]
`, name, role))
	return suite.Token(t, w.core, "operate", name)
}
