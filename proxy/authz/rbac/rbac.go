// Package rbac authorizes by the ClusterRoles and ClusterRoleBindings of a directory, for control planes without a
// kube-apiserver. k8s.io/component-helpers compares the rules, so a rule means here what it means in Kubernetes.
//
// An Authorizer is safe for concurrent use; it reads the current roles for every question and does no I/O.
package rbac

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// Authorizer allows what a role allows that is bound to the user or one of its groups.
type Authorizer struct {
	// Roles returns ClusterRoles by name, ClusterRoleBindings, and a number that changes with either.
	Roles func() (map[string]*rbacv1.ClusterRole, []*rbacv1.ClusterRoleBinding, uint64)
}

// Generation changes whenever Authorize's result may change.
func (z *Authorizer) Generation() uint64 {
	_, _, generation := z.Roles()
	return generation
}

// Authorize decides. It never denies: as upstream, it has no opinion if no role allows the request.
func (z *Authorizer) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser() == nil {
		return authorizer.DecisionNoOpinion, "", nil
	}
	roles, bindings, _ := z.Roles()
	wanted := []rbacv1.PolicyRule{rule(a)}
	for _, b := range bindings {
		role := roles[b.RoleRef.Name]
		at := slices.IndexFunc(b.Subjects, func(s rbacv1.Subject) bool { return is(a.GetUser(), &s) })
		if role == nil || at < 0 {
			continue
		}
		if ok, _ := validation.Covers(role.Rules, wanted); ok {
			s := &b.Subjects[at]
			why := fmt.Sprintf("RBAC: allowed by ClusterRoleBinding %q of ClusterRole %q to %s %q",
				b.Name, role.Name, s.Kind, s.Name)
			return authorizer.DecisionAllow, why, nil
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// rule returns the smallest rule that allows the request.
func rule(a authorizer.Attributes) rbacv1.PolicyRule {
	r := rbacv1.PolicyRule{Verbs: []string{a.GetVerb()}}
	if !a.IsResourceRequest() {
		r.NonResourceURLs = []string{a.GetPath()}
		return r
	}
	resource := a.GetResource()
	if sub := a.GetSubresource(); sub != "" {
		resource += "/" + sub
	}
	r.APIGroups, r.Resources = []string{a.GetAPIGroup()}, []string{resource}
	if name := a.GetName(); name != "" {
		r.ResourceNames = []string{name}
	}
	return r
}

func is(u user.Info, s *rbacv1.Subject) bool {
	switch s.Kind {
	case rbacv1.UserKind:
		return u.GetName() == s.Name
	case rbacv1.GroupKind:
		return slices.Contains(u.GetGroups(), s.Name)
	case rbacv1.ServiceAccountKind:
		return s.Namespace != "" && serviceaccount.MatchesUsername(s.Namespace, s.Name, u.GetName())
	}
	return false
}
