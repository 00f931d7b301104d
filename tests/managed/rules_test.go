//go:build e2e

package managed

import (
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// testRules finds in the audit log a use of each rule that the overlay adds to the base, and that
// the CronJob's account has. tests/operate does so for the rules of the base.
func testRules(t *testing.T, w *world) {
	log := must.Get(os.ReadFile(w.front.Part.LogFile()))(t)
	if strings.Contains(string(log), "forbidden: User") {
		t.Errorf("%s", log)
	}
	for _, e := range w.events(t) {
		if e.User.Username == accountName && e.ImpersonatedUser == nil && e.ResponseStatus.Code == 403 {
			t.Errorf("Fairlead sent a forbidden request: %+v", e)
		}
	}
	own := must.Get(w.core.RbacV1().ClusterRoles().Get(t.Context(), "system:fairlead-impersonate", metav1.GetOptions{}))(t)
	renew := must.Get(w.core.RbacV1().Roles("kube-system").Get(t.Context(), "fairlead-renew", metav1.GetOptions{}))(t)
	if n := w.needed(t, accountName, own.Rules) + w.needed(t, "system:serviceaccount:kube-system:fairlead-renew", renew.Rules); n < 9 {
		t.Errorf("%d permissions are granted, want at least 9", n)
	}
}

// needed fails for what rules grant an account without need, and returns how much they grant.
func (w *world) needed(t *testing.T, account string, rules []rbacv1.PolicyRule) (n int) {
	t.Helper()
	events := w.events(t)
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				n++
				if !slices.ContainsFunc(events, func(e event) bool { return e.User.Username == account && e.needs(verb, resource, rule.ResourceNames) }) {
					t.Errorf("nothing needs to %s %s %v", verb, resource, rule.ResourceNames)
				}
			}
		}
	}
	return n
}

// needs reports whether a request was made that needed a permission.
func (e *event) needs(verb, resource string, names []string) bool {
	as := e.ImpersonatedUser
	if verb != "impersonate" {
		return as == nil && e.Verb == verb && e.ObjectRef.Resource == resource && e.ResponseStatus.Code < 300 && (len(names) == 0 || slices.Contains(names, e.ObjectRef.Name))
	}
	if as == nil {
		return false
	}
	robot := strings.HasPrefix(as.Username, "system:serviceaccount:")
	switch key, extra := strings.CutPrefix(resource, "userextras/"); {
	case extra:
		return len(as.Extra[key]) > 0
	case resource == "groups":
		return slices.Contains(as.Groups, "dev")
	case resource == "uids":
		return as.UID == "one"
	}
	return robot == (resource == "serviceaccounts")
}
