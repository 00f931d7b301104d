package manifest

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// roleName validates names of roles and bindings: they are path segments, and may have colons.
func roleName(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// validateRole applies the rules of pkg/apis/rbac/validation. Aggregated roles are refused, because
// the controller that aggregates them does not run here.
func validateRole(o *rbacv1.ClusterRole) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&o.ObjectMeta, false, roleName, metadata())
	if o.AggregationRule != nil {
		errs = append(errs, field.Forbidden(field.NewPath("aggregationRule"), "nothing aggregates roles here: list the rules"))
	}
	for i := range o.Rules {
		errs = append(errs, validateRule(&o.Rules[i], field.NewPath("rules").Index(i))...)
	}
	return errs
}

func validateRule(r *rbacv1.PolicyRule, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Verbs) == 0 {
		errs = append(errs, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
	}
	if len(r.NonResourceURLs) > 0 {
		if len(r.APIGroups) > 0 || len(r.Resources) > 0 || len(r.ResourceNames) > 0 {
			errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
		}
		return errs
	}
	if len(r.APIGroups) == 0 {
		errs = append(errs, field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
	}
	if len(r.Resources) == 0 {
		errs = append(errs, field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
	}
	return errs
}

// validateBinding applies the rules of pkg/apis/rbac/validation.
func validateBinding(o *rbacv1.ClusterRoleBinding) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&o.ObjectMeta, false, roleName, metadata())
	ref := field.NewPath("roleRef")
	if o.RoleRef.APIGroup != rbacv1.GroupName {
		errs = append(errs, field.NotSupported(ref.Child("apiGroup"), o.RoleRef.APIGroup, []string{rbacv1.GroupName}))
	}
	if o.RoleRef.Kind != "ClusterRole" {
		errs = append(errs, field.NotSupported(ref.Child("kind"), o.RoleRef.Kind, []string{"ClusterRole"}))
	}
	if o.RoleRef.Name == "" {
		errs = append(errs, field.Required(ref.Child("name"), ""))
	} else {
		errs = append(errs, invalid(ref.Child("name"), o.RoleRef.Name, roleName(o.RoleRef.Name, false))...)
	}
	for i := range o.Subjects {
		errs = append(errs, validateSubject(&o.Subjects[i], field.NewPath("subjects").Index(i))...)
	}
	return errs
}

func validateSubject(s *rbacv1.Subject, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	}
	group := rbacv1.GroupName
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		group = ""
		if s.Name != "" {
			errs = append(errs, invalid(at.Child("name"), s.Name, apivalidation.ValidateServiceAccountName(s.Name, false))...)
		}
		if s.Namespace == "" {
			errs = append(errs, field.Required(at.Child("namespace"), ""))
		}
	case rbacv1.UserKind, rbacv1.GroupKind:
	default:
		return append(errs, field.NotSupported(at.Child("kind"), s.Kind, []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
	}
	if s.APIGroup != group {
		errs = append(errs, field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{group}))
	}
	return errs
}
