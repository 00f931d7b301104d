package rbac

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func kit() *Authorizer {
	group := func(name string) rbacv1.Subject { return rbacv1.Subject{Kind: rbacv1.GroupKind, Name: name} }
	roles := map[string]*rbacv1.ClusterRole{}
	var bindings []*rbacv1.ClusterRoleBinding
	add := func(name string, subject rbacv1.Subject, rules ...rbacv1.PolicyRule) {
		r, b := &rbacv1.ClusterRole{Rules: rules}, &rbacv1.ClusterRoleBinding{Subjects: []rbacv1.Subject{subject}}
		r.Name, b.Name, b.RoleRef.Name = name, "of-"+name, name
		roles[name], bindings = r, append(bindings, b)
	}
	add("readers", group("readers"), rbacv1.PolicyRule{APIGroups: []string{"a.io"}, Resources: []string{"widgets"}, Verbs: []string{"get", "list"}},
		rbacv1.PolicyRule{NonResourceURLs: []string{"/apis", "/apis/*"}, Verbs: []string{"get"}})
	add("named", group("named"), rbacv1.PolicyRule{APIGroups: []string{"a.io"}, Resources: []string{"widgets"}, ResourceNames: []string{"one"}, Verbs: []string{"get"}})
	add("scalers", group("scalers"), rbacv1.PolicyRule{APIGroups: []string{"a.io"}, Resources: []string{"*/scale"}, Verbs: []string{"*"}})
	add("everything", rbacv1.Subject{Kind: rbacv1.UserKind, Name: "root"}, rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}})
	add("urls", group("urls"), rbacv1.PolicyRule{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}})
	add("account", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "x", Name: "bot"}, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}})
	add("nameless", rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: "bot"}, rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}})
	add("strange", rbacv1.Subject{Kind: "Robot", Name: "u"}, rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}})
	delete(roles, "urls")
	bindings = append(bindings, bindings[len(bindings)-1]) // a duplicate is harmless
	return &Authorizer{Roles: func() (map[string]*rbacv1.ClusterRole, []*rbacv1.ClusterRoleBinding, uint64) {
		return roles, bindings, 7
	}}
}

func TestAuthorize(t *testing.T) {
	member := func(groups ...string) user.Info { return &user.DefaultInfo{Name: "u", Groups: groups} }
	resource := func(verb, group, resource, sub, name string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{ResourceRequest: true, Verb: verb, APIGroup: group, Resource: resource, Subresource: sub, Name: name}
	}
	url := func(verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Path: path}
	}
	for _, tc := range []struct {
		name string
		user user.Info
		ask  authorizer.AttributesRecord
		want bool
	}{
		{"by group", member("other", "readers"), resource("list", "a.io", "widgets", "", ""), true},
		{"any name", member("readers"), resource("get", "a.io", "widgets", "", "one"), true},
		{"another verb", member("readers"), resource("delete", "a.io", "widgets", "", "one"), false},
		{"another group", member("readers"), resource("get", "b.io", "widgets", "", "one"), false},
		{"another resource", member("readers"), resource("get", "a.io", "gadgets", "", "one"), false},
		{"a subresource", member("readers"), resource("get", "a.io", "widgets", "status", "one"), false},
		{"no group", member(), resource("get", "a.io", "widgets", "", "one"), false},
		{"the group's name is no user's", &user.DefaultInfo{Name: "readers"}, resource("get", "a.io", "widgets", "", "one"), false},
		{"its name", member("named"), resource("get", "a.io", "widgets", "", "one"), true},
		{"another name", member("named"), resource("get", "a.io", "widgets", "", "two"), false},
		{"no name", member("named"), resource("get", "a.io", "widgets", "", ""), false},
		{"subresource of all", member("scalers"), resource("update", "a.io", "widgets", "scale", "one"), true},
		{"not the resource", member("scalers"), resource("update", "a.io", "widgets", "", "one"), false},
		{"everything", &user.DefaultInfo{Name: "root"}, resource("delete", "x.io", "y", "z", "w"), true},
		{"everything is no URL", &user.DefaultInfo{Name: "root"}, url("get", "/apis"), false},
		{"URL", member("readers"), url("get", "/apis"), true},
		{"URL below", member("readers"), url("get", "/apis/a.io/v1"), true},
		{"URL beside", member("readers"), url("get", "/api"), false},
		{"URL, verb", member("readers"), url("post", "/apis"), false},
		{"role that is not there", member("urls"), url("get", "/x"), false},
		{"account", &user.DefaultInfo{Name: "system:serviceaccount:x:bot"}, resource("get", "", "pods", "", "p"), true},
		{"account of another namespace", &user.DefaultInfo{Name: "system:serviceaccount:y:bot"}, resource("get", "", "pods", "", "p"), false},
		{"account without namespace", &user.DefaultInfo{Name: "system:serviceaccount::bot"}, resource("get", "b.io", "pods", "", "p"), false},
		{"nobody", nil, resource("get", "a.io", "widgets", "", "one"), false},
	} {
		tc.ask.User = tc.user
		z := kit()
		got, reason := must.Get2(z.Authorize(t.Context(), tc.ask))(t)
		want := map[bool]authorizer.Decision{true: authorizer.DecisionAllow, false: authorizer.DecisionNoOpinion}[tc.want]
		check.Same(t, want, got, "%s: decision for the reason %q", tc.name, reason)
		check.Same(t, tc.want, reason != "", "%s: a reason", tc.name)
		check.Same(t, uint64(7), z.Generation(), "%s: generation", tc.name)
	}
}
