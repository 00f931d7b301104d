//go:build e2e

package managed

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testRules runs Fairlead without each resource of each rule that the overlay adds to the base.
// tests/operate does so for the rules of the base.
func testRules(t *testing.T, w *world) {
	t.Run("nothing is forbidden", func(t *testing.T) {
		log := must.Get(os.ReadFile(w.front.Part.LogFile()))(t)
		if strings.Contains(string(log), "forbidden: User") {
			t.Errorf("%s", log)
		}
		for _, e := range w.events(t) {
			if e.User.Username == accountName && e.ImpersonatedUser == nil && e.ResponseStatus.Code == 403 {
				t.Errorf("Fairlead sent a forbidden request: %+v", e)
			}
		}
	})
	role := must.Get(w.core.RbacV1().ClusterRoles().Get(t.Context(), "system:fairlead-impersonate", metav1.GetOptions{}))(t)
	n := 0
	for i, rule := range role.Rules {
		for j, resource := range rule.Resources {
			n++
			less := slices.Clone(role.Rules)
			less[i].Resources = slices.Delete(slices.Clone(rule.Resources), j, j+1)
			if len(less[i].Resources) == 0 {
				less = slices.Delete(less, i, i+1)
			}
			t.Run("without "+strings.ReplaceAll(resource, "/", " "), func(t *testing.T) {
				t.Parallel()
				testWithout(t, w, resource, less)
			})
		}
	}
	if n < 6 {
		t.Errorf("%d resources are granted, want at least 6", n)
	}
}

// testWithout runs a Fairlead with rules that lack a resource. Requests that need it must be
// refused.
func testWithout(t *testing.T, w *world, resource string, rules []rbacv1.PolicyRule) {
	account := strings.ToLower(strings.NewReplacer("/", "-", ".", "-").Replace("less-" + resource))
	w.grant(t, account, rules)
	front := must.Get(w.start(t, account, "managed", account))(t)
	by := map[string]passport{}
	for _, p := range passports(t, w) {
		by[p.name] = p
	}
	// Callers with a token of the cluster need none of these rules.
	if code, body := w.whoami(t, front, by["ServiceAccount token"]); code != 201 {
		t.Errorf("by token: %d %s", code, body)
	}
	if resource == "customresourcedefinitions" {
		suite.Eventually(t, soon, "a watch that is refused", func() (bool, string) {
			refused := slices.ContainsFunc(w.events(t), func(e event) bool {
				return strings.HasSuffix(e.User.Username, ":"+account) && e.Verb == "watch" && e.ObjectRef.Resource == resource && e.ResponseStatus.Code == 403
			})
			return refused, ""
		})
		return
	}
	needs, ok := map[string]passport{
		"users":           by["front proxy for who has no group"],
		"groups":          by["front proxy"],
		"serviceaccounts": by["who may impersonate a ServiceAccount"],
		"uids":            {cred: by["who may impersonate"].cred, header: map[string][]string{"Impersonate-User": {"carol"}, "Impersonate-Uid": {"one"}}},
		"userextras/authentication.kubernetes.io/credential-id": by["certificate"],
	}[resource]
	if !ok {
		t.Fatalf("%s is granted, and no case here needs it", resource)
	}
	if code, body := w.whoami(t, w.front, needs); code != 201 {
		t.Errorf("with the rule: %d %s", code, body)
	}
	// The message is that of the last attempt, constrained impersonation.
	if code, body := w.whoami(t, front, needs); code != 403 || !strings.Contains(body, account+`\" cannot impersonate`) {
		t.Errorf("without the rule: %d %s", code, body)
	}
}

// grant makes an account for Fairlead with the rights of deploy/base and these rules.
func (w *world) grant(t *testing.T, name string, rules []rbacv1.PolicyRule) {
	t.Helper()
	w.must(t, "kubectl -n managed create serviceaccount "+name)
	meta := metav1.ObjectMeta{Name: name}
	must.Get(w.core.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}))(t)
	for _, role := range []string{"system:fairlead", name} {
		w.must(t, fmt.Sprintf("kubectl create clusterrolebinding %s-%s --clusterrole=%s --serviceaccount=managed:%s", name, strings.ReplaceAll(role, ":", "-"), role, name))
	}
	w.must(t, fmt.Sprintf("kubectl -n kube-system create rolebinding %s --role=extension-apiserver-authentication-reader --serviceaccount=managed:%s", name, name))
}
