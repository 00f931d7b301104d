//go:build e2e

package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

// testRoles runs Fairlead with what deploy/base grants, and with one rule less.
func testRoles(t *testing.T, w *world) {
	w.serve(t, "guarded", nil)
	w.apply(t, reader)
	may, mayNot := w.token(t, "operate", "reader"), w.token(t, "operate", "stranger")
	const widgets = "/apis/guarded.example.com/v1/namespaces/default/widgets"
	t.Run("everything works", func(t *testing.T) {
		eventually(t, 30*time.Second, "served", func() (bool, string) {
			code, body := w.get(t, w.front.Endpoint, widgets, may)
			return code == 200, body
		})
		for path, want := range map[string]int{widgets: 403, "/fairlead/status": 403, "/api/v1/namespaces": 403} {
			if code, body := w.get(t, w.front.Endpoint, path, mayNot); code != want {
				t.Errorf("%s by a stranger: %d %s", path, code, body)
			}
		}
		for _, path := range []string{"/fairlead/status", "/fairlead/", "/fairlead/explain?path=/api/v1/pods"} {
			if code, body := w.get(t, w.front.Endpoint, path, may); code != 200 {
				t.Errorf("%s by a viewer: %d %s", path, code, body)
			}
		}
		if code, _ := w.get(t, w.front.Admin, "/metrics", may); code != 403 {
			t.Errorf("metrics without the role: %d", code)
		}
		log, err := os.ReadFile(w.front.Part.LogFile())
		check(t, err)
		if strings.Contains(string(log), "forbidden: User") {
			t.Errorf("something was forbidden:\n%s", log)
		}
	})
	shipped, err := w.core.RbacV1().ClusterRoles().Get(t.Context(), "system:fairlead", metav1.GetOptions{})
	check(t, err)
	if len(shipped.Rules) != 5 {
		t.Fatalf("%d rules: each needs a case below", len(shipped.Rules))
	}
	for i, rule := range shipped.Rules {
		name := "without " + rule.Resources[0]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := append(append([]rbacv1.PolicyRule{}, shipped.Rules[:i]...), shipped.Rules[i+1:]...)
			front, err := w.restricted(t, fmt.Sprintf("less-%d", i), rules, true)
			switch rule.Resources[0] {
			case "tokenreviews":
				check(t, err)
				if code, body := w.get(t, front.Endpoint, widgets, may); code != 401 {
					t.Errorf("%d %s, want 401: nobody knows the token", code, body)
				}
			case "subjectaccessreviews":
				check(t, err)
				if code, body := w.get(t, front.Endpoint, widgets, may); code != 500 {
					t.Errorf("%d %s, want 500: nobody can authorize", code, body)
				}
			default:
				if err == nil {
					t.Errorf("it is ready without a table")
				}
			}
		})
	}
	t.Run("without the ConfigMap", func(t *testing.T) {
		t.Parallel()
		front, err := w.restricted(t, "less-configmap", shipped.Rules, false)
		check(t, err)
		_, body := w.get(t, front.Endpoint, "/fairlead/status", "")
		var s struct {
			Certificates []struct {
				Use  string
				Read *time.Time
			}
		}
		check(t, json.Unmarshal([]byte(body), &s))
		for _, c := range s.Certificates {
			if c.Use == "authentication-configmap" && c.Read != nil {
				t.Errorf("the ConfigMap was read at %s without the right to", c.Read)
			}
		}
		log, err := os.ReadFile(front.Part.LogFile())
		check(t, err)
		if !strings.Contains(string(log), "cannot list resource") {
			t.Errorf("the log does not tell that the ConfigMap cannot be read:\n%s", log)
		}
	})
}

// reader may list widgets and see the status page; stranger may nothing.
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

// restricted starts a Fairlead as an account of its own with these rules.
func (w *world) restricted(t *testing.T, name string, rules []rbacv1.PolicyRule, configMap bool) (*cluster.Front, error) {
	t.Helper()
	w.apply(t, fmt.Sprintf(`
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: operate, name: %[1]s}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: ServiceAccount, namespace: operate, name: %[1]s}]
`, name))
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	_, err := w.core.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	check(t, err)
	if configMap {
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "operate", Name: name}},
			RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "extension-apiserver-authentication-reader"},
		}
		_, err := w.core.RbacV1().RoleBindings("kube-system").Create(t.Context(), binding, metav1.CreateOptions{})
		check(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second) // a Fairlead that may everything is ready within a second or two
	defer cancel()
	return w.StartFairlead(ctx, cluster.Fairlead{Path: w.fairlead, Name: name, Args: []string{"--kubeconfig=" + w.account(t, "operate", name)}})
}
