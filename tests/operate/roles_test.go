//go:build e2e

package operate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testRoles runs Fairlead with the rights of deploy/base, then with one rule less.
func testRoles(t *testing.T, w *world) {
	w.serve(t, "guarded", nil)
	w.apply(t, reader)
	w.apply(t, definition("gadgets", "guarded"))
	w.apply(t, fmt.Sprintf(lost, "herald")) // a new claim makes Fairlead look for shadowed definitions
	may, mayNot := suite.Token(t, w.core, "operate", "reader"), suite.Token(t, w.core, "operate", "stranger")
	const hides = "CustomResourceDefinition gadgets.guarded.example.com"
	const widgets = "/apis/guarded.example.com/v1/namespaces/default/widgets"
	t.Run("everything works", func(t *testing.T) {
		w.serves(t, 30*time.Second, w.front.Endpoint, widgets, may)
		for _, path := range []string{widgets, "/api/v1/namespaces"} { // testViewer tests the pages
			w.wants(t, 403, w.front.Endpoint, path, mayNot)
		}
		w.wants(t, 403, w.front.Admin, "/metrics", may)
		suite.Eventually(t, 10*time.Second, "seen to hide a definition", func() (bool, string) {
			_, body := w.get(t, w.front.Endpoint, "/fairlead/status", may)
			return strings.Contains(body, hides), body
		})
		if log := w.logged(t, w.front); strings.Contains(log, "forbidden: User") {
			t.Errorf("something was forbidden:\n%s", log)
		}
	})
	grants := shippedGrants(t, w)
	for i, missing := range grants {
		if missing.component != "" {
			continue
		}
		t.Run("without "+missing.String(), func(t *testing.T) {
			t.Parallel()
			front, err := w.restricted(t, fmt.Sprintf("less-%d", i), without(grants, i))
			switch missing.resource() {
			case "tokenreviews":
				must.Do(t, err)
				w.wants(t, 503, front.Endpoint, widgets, may) // nothing can review the token
			case "subjectaccessreviews":
				must.Do(t, err)
				w.wants(t, 503, front.Endpoint, widgets, may) // nothing can authorize
			case "customresourcedefinitions":
				must.Do(t, err)
				suite.Eventually(t, 10*time.Second, "it is logged", func() (bool, string) {
					log := w.logged(t, front)
					return strings.Contains(log, `cannot list resource \"customresourcedefinitions\"`), log
				})
				if _, body := w.get(t, front.Endpoint, "/fairlead/status", may); strings.Contains(body, hides) {
					t.Errorf("the shadowed definition was found without the right to list it:\n%s", body)
				}
			default:
				// All other rules are for what it must read first. A new rule for something else
				// must get a case.
				if err == nil {
					t.Errorf("Fairlead is ready without %s", missing)
				}
			}
		})
	}
	t.Run("components", func(t *testing.T) { testComponents(t, w, grants) })
	t.Run("for others", func(t *testing.T) { testOthers(t, w, grants) })
}

// reader may list widgets and read the status page; stranger has no rights.
const reader = `
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: operate, name: reader}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: operate, name: stranger}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: widgets}
rules: [{apiGroups: [guarded.example.com], resources: [widgets], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: widgets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: widgets}
subjects: [{kind: ServiceAccount, namespace: operate, name: reader}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: viewers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:fairlead-viewer"}
subjects: [{kind: ServiceAccount, namespace: operate, name: reader}]
`
