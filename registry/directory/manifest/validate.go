package manifest

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorvalidation "k8s.io/kube-aggregator/pkg/apis/apiregistration/validation"
)

// setDefaults sets kube-apiserver's defaults for the kinds whose defaults are not in a library
// (pkg/apis/{core,discovery,rbac}/v1/defaults.go), for the fields that are used
// here.
func setDefaults(value runtime.Object) {
	switch o := value.(type) {
	case *corev1.Service:
		o.Spec.Type = cmp.Or(o.Spec.Type, corev1.ServiceTypeClusterIP)
		for i := range o.Spec.Ports {
			p := &o.Spec.Ports[i]
			p.Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
			if p.TargetPort == (intstr.IntOrString{}) {
				p.TargetPort = intstr.FromInt32(p.Port)
			}
		}
	case *discoveryv1.EndpointSlice:
		for i := range o.Ports {
			p := &o.Ports[i]
			p.Name = cmp.Or(p.Name, new(""))
			p.Protocol = cmp.Or(p.Protocol, new(corev1.ProtocolTCP))
		}
	case *rbacv1.ClusterRoleBinding:
		o.RoleRef.APIGroup = cmp.Or(o.RoleRef.APIGroup, rbacv1.GroupName)
		for i := range o.Subjects {
			if s := &o.Subjects[i]; s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind {
				s.APIGroup = cmp.Or(s.APIGroup, rbacv1.GroupName)
			}
		}
	}
}

// validateAPIService applies kube-aggregator's rules.
func validateAPIService(o *apiregistrationv1.APIService) field.ErrorList {
	var internal apiregistration.APIService
	if err := apiregistrationv1.Convert_v1_APIService_To_apiregistration_APIService(o, &internal, nil); err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return aggregatorvalidation.ValidateAPIService(context.Background(), &internal)
}

func metadata() *field.Path { return field.NewPath("metadata") }

// validateService applies the rules of pkg/apis/core/validation that matter for routing there.
func validateService(o *corev1.Service) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&o.ObjectMeta, true, apivalidation.NameIsDNS1035Label, metadata())
	spec := field.NewPath("spec")
	external := o.Spec.Type == corev1.ServiceTypeExternalName
	headless := o.Spec.ClusterIP == corev1.ClusterIPNone
	switch o.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
	case corev1.ServiceTypeExternalName:
		errs = append(errs, invalid(spec.Child("externalName"), o.Spec.ExternalName, utilvalidation.IsDNS1123Subdomain(o.Spec.ExternalName))...)
	default:
		errs = append(errs, field.NotSupported(spec.Child("type"), o.Spec.Type, []corev1.ServiceType{
			corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort,
		}))
	}
	if ip := o.Spec.ClusterIP; ip != "" && !headless {
		if external {
			errs = append(errs, field.Forbidden(spec.Child("clusterIP"), "may not be set for ExternalName services"))
		} else if _, err := netip.ParseAddr(ip); err != nil {
			errs = append(errs, field.Invalid(spec.Child("clusterIP"), ip, "must be empty, \"None\", or a valid IP address"))
		}
	}
	errs = append(errs, when(len(o.Spec.Ports) == 0 && !external && !headless,
		field.Required(spec.Child("ports"), ""))...)
	names, numbers := sets.New[string](), sets.New[string]()
	for i := range o.Spec.Ports {
		errs = append(errs, validateServicePort(&o.Spec.Ports[i], spec.Child("ports").Index(i), len(o.Spec.Ports) > 1, names, numbers)...)
	}
	return errs
}

func validateServicePort(p *corev1.ServicePort, path *field.Path, named bool, names, numbers sets.Set[string]) field.ErrorList {
	errs := validatePortName(p.Name, path.Child("name"), names)
	errs = append(errs, when(named && p.Name == "", field.Required(path.Child("name"), ""))...)
	errs = append(errs, invalid(path.Child("port"), p.Port, utilvalidation.IsValidPortNum(int(p.Port)))...)
	number := fmt.Sprintf("%s/%d", p.Protocol, p.Port)
	errs = append(errs, when(numbers.Has(number), field.Duplicate(path, number))...)
	numbers.Insert(number)
	return append(errs, validateProtocol(p.Protocol, path.Child("protocol"))...)
}

func validatePortName(name string, path *field.Path, names sets.Set[string]) field.ErrorList {
	var errs field.ErrorList
	if name != "" {
		errs = invalid(path, name, utilvalidation.IsDNS1123Label(name))
		errs = append(errs, when(names.Has(name), field.Duplicate(path, name))...)
	}
	names.Insert(name)
	return errs
}

func validateProtocol(p corev1.Protocol, path *field.Path) field.ErrorList {
	switch p {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return nil
	}
	return field.ErrorList{field.NotSupported(path, p, []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP})}
}

const (
	maxEndpoints = 1000 // per slice; pkg/apis/discovery/validation
	maxAddresses = 100  // per endpoint
	maxPorts     = 20_000
)

// validateSlice applies the rules of pkg/apis/discovery/validation that matter for dialling.
func validateSlice(o *discoveryv1.EndpointSlice) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&o.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, metadata())
	errs = append(errs, when(o.Labels[discoveryv1.LabelServiceName] == "",
		field.Required(metadata().Child("labels").Key(discoveryv1.LabelServiceName), "it says which Service the endpoints belong to"))...)
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	case "":
		errs = append(errs, field.Required(field.NewPath("addressType"), ""))
	default:
		errs = append(errs, field.NotSupported(field.NewPath("addressType"), o.AddressType, []discoveryv1.AddressType{
			discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6,
		}))
	}
	endpoints := field.NewPath("endpoints")
	if len(o.Endpoints) > maxEndpoints {
		return append(errs, field.TooMany(endpoints, len(o.Endpoints), maxEndpoints))
	}
	for i := range o.Endpoints {
		errs = append(errs, validateAddresses(o.Endpoints[i].Addresses, o.AddressType, endpoints.Index(i).Child("addresses"))...)
	}
	ports := field.NewPath("ports")
	if len(o.Ports) > maxPorts {
		return append(errs, field.TooMany(ports, len(o.Ports), maxPorts))
	}
	names := sets.New[string]()
	for i := range o.Ports {
		p, path := &o.Ports[i], ports.Index(i)
		errs = append(errs, when(names.Has(*p.Name), field.Duplicate(path.Child("name"), *p.Name))...)
		errs = append(errs, validatePortName(*p.Name, path.Child("name"), sets.New[string]())...)
		names.Insert(*p.Name)
		errs = append(errs, validateProtocol(*p.Protocol, path.Child("protocol"))...)
		if p.Port == nil {
			errs = append(errs, field.Required(path.Child("port"), ""))
			continue
		}
		errs = append(errs, invalid(path.Child("port"), *p.Port, utilvalidation.IsValidPortNum(int(*p.Port)))...)
	}
	return errs
}

func validateAddresses(addresses []string, kind discoveryv1.AddressType, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case len(addresses) == 0:
		return append(errs, field.Required(path, "must contain at least 1 address"))
	case len(addresses) > maxAddresses:
		return append(errs, field.TooMany(path, len(addresses), maxAddresses))
	}
	for i, a := range addresses {
		at := path.Index(i)
		if kind == discoveryv1.AddressTypeFQDN {
			errs = append(errs, invalid(at, a, utilvalidation.IsDNS1123Subdomain(a))...)
			continue
		}
		addr, err := netip.ParseAddr(a)
		switch {
		case err != nil || addr.Zone() != "":
			errs = append(errs, field.Invalid(at, a, "must be a valid IP address"))
		case kind == discoveryv1.AddressTypeIPv4 && !addr.Is4():
			errs = append(errs, field.Invalid(at, a, "must be an IPv4 address"))
		case kind == discoveryv1.AddressTypeIPv6 && !addr.Is6():
			errs = append(errs, field.Invalid(at, a, "must be an IPv6 address"))
		}
	}
	return errs
}

// validateData validates a ConfigMap or a Secret: two maps with the names of their fields. No key
// may be in both, unless the first map overrides the second one.
func validateData(o *metav1.ObjectMeta, texts, data string, text map[string]string, raw map[string][]byte, overrides bool) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(o, true, apivalidation.NameIsDNSSubdomain, metadata())
	total := 0
	for k, v := range text {
		errs = append(errs, validateKey(k, field.NewPath(texts))...)
		if _, both := raw[k]; both && !overrides {
			errs = append(errs, field.Invalid(field.NewPath(texts).Key(k), k, "duplicate of key present in "+data))
		}
		total += len(v)
	}
	for k, v := range raw {
		errs = append(errs, validateKey(k, field.NewPath(data))...)
		total += len(v)
	}
	if total > corev1.MaxSecretSize { // of ConfigMaps, too
		errs = append(errs, field.TooLong(field.NewPath("data"), "", corev1.MaxSecretSize))
	}
	return errs
}

func validateKey(k string, path *field.Path) field.ErrorList {
	return invalid(path.Key(k), k, utilvalidation.IsConfigMapKey(k))
}

// when returns an error if something is wrong.
func when(wrong bool, err *field.Error) field.ErrorList {
	if wrong {
		return field.ErrorList{err}
	}
	return nil
}

// invalid returns an error for each of the messages about a value.
func invalid(path *field.Path, value any, messages []string) (errs field.ErrorList) {
	for _, msg := range messages {
		errs = append(errs, field.Invalid(path, value, msg))
	}
	return errs
}

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
	errs = append(errs, when(o.AggregationRule != nil,
		field.Forbidden(field.NewPath("aggregationRule"), "nothing aggregates roles here: list the rules"))...)
	for i := range o.Rules {
		errs = append(errs, validateRule(&o.Rules[i], field.NewPath("rules").Index(i))...)
	}
	return errs
}

func validateRule(r *rbacv1.PolicyRule, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, when(len(r.Verbs) == 0,
		field.Required(at.Child("verbs"), "verbs must contain at least one value"))...)
	if len(r.NonResourceURLs) > 0 {
		errs = append(errs, when(len(r.APIGroups) > 0 || len(r.Resources) > 0 || len(r.ResourceNames) > 0,
			field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))...)
		return errs
	}
	errs = append(errs, when(len(r.APIGroups) == 0,
		field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))...)
	errs = append(errs, when(len(r.Resources) == 0,
		field.Required(at.Child("resources"), "resource rules must supply at least one resource"))...)
	return errs
}

// validateBinding applies the rules of pkg/apis/rbac/validation.
func validateBinding(o *rbacv1.ClusterRoleBinding) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&o.ObjectMeta, false, roleName, metadata())
	ref := field.NewPath("roleRef")
	errs = append(errs, when(o.RoleRef.APIGroup != rbacv1.GroupName,
		field.NotSupported(ref.Child("apiGroup"), o.RoleRef.APIGroup, []string{rbacv1.GroupName}))...)
	errs = append(errs, when(o.RoleRef.Kind != "ClusterRole",
		field.NotSupported(ref.Child("kind"), o.RoleRef.Kind, []string{"ClusterRole"}))...)
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
	errs = append(errs, when(s.Name == "", field.Required(at.Child("name"), ""))...)
	group := rbacv1.GroupName
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		group = ""
		if s.Name != "" {
			errs = append(errs, invalid(at.Child("name"), s.Name, apivalidation.ValidateServiceAccountName(s.Name, false))...)
		}
		errs = append(errs, when(s.Namespace == "", field.Required(at.Child("namespace"), ""))...)
	case rbacv1.UserKind, rbacv1.GroupKind:
	default:
		return append(errs, field.NotSupported(at.Child("kind"), s.Kind, []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
	}
	errs = append(errs, when(s.APIGroup != group,
		field.NotSupported(at.Child("apiGroup"), s.APIGroup, []string{group}))...)
	return errs
}
