package manifest

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
// (pkg/apis/{core,discovery,rbac}/v1/defaults.go), for the fields that are used here.
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

type violations field.ErrorList

func (v *violations) add(wrong bool, err *field.Error) {
	if wrong {
		*v = append(*v, err)
	}
}

// invalid adds an error for each of the messages about a value.
func (v *violations) invalid(path *field.Path, value any, messages []string) {
	for _, msg := range messages {
		*v = append(*v, field.Invalid(path, value, msg))
	}
}

func oneOf[T ~string](v *violations, path *field.Path, value T, supported ...T) {
	v.add(!slices.Contains(supported, value), field.NotSupported(path, value, supported))
}

func (v *violations) apiService(o *apiregistrationv1.APIService) {
	var internal apiregistration.APIService
	_ = apiregistrationv1.Convert_v1_APIService_To_apiregistration_APIService(o, &internal, nil) // it never fails
	*v = append(*v, aggregatorvalidation.ValidateAPIService(context.Background(), &internal)...)
}

func (v *violations) metadata(o *metav1.ObjectMeta, namespaced bool, name apivalidation.ValidateNameFunc) {
	*v = append(*v, apivalidation.ValidateObjectMeta(o, namespaced, name, field.NewPath("metadata"))...)
}

// service applies the rules of pkg/apis/core/validation that matter for routing there.
func (v *violations) service(o *corev1.Service) {
	v.metadata(&o.ObjectMeta, true, apivalidation.NameIsDNSLabel) // since v1.36 also 9y
	spec := field.NewPath("spec")
	external := o.Spec.Type == corev1.ServiceTypeExternalName
	headless := o.Spec.ClusterIP == corev1.ClusterIPNone
	oneOf(v, spec.Child("type"), o.Spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)
	if name := o.Spec.ExternalName; external {
		v.invalid(spec.Child("externalName"), name, utilvalidation.IsDNS1123Subdomain(strings.TrimSuffix(name, ".")))
	}
	if ip, at := o.Spec.ClusterIP, spec.Child("clusterIP"); ip != "" && !headless {
		_, err := netip.ParseAddr(ip)
		v.add(external, field.Forbidden(at, "may not be set for ExternalName services"))
		v.add(!external && err != nil, field.Invalid(at, ip, "must be empty, \"None\", or a valid IP address"))
	}
	v.add(len(o.Spec.Ports) == 0 && !external && !headless, field.Required(spec.Child("ports"), ""))
	names, numbers := sets.New[string](), sets.New[string]()
	for i := range o.Spec.Ports {
		p, path := &o.Spec.Ports[i], spec.Child("ports").Index(i)
		v.portName(p.Name, path.Child("name"), names)
		v.add(len(o.Spec.Ports) > 1 && p.Name == "", field.Required(path.Child("name"), ""))
		v.invalid(path.Child("port"), p.Port, utilvalidation.IsValidPortNum(int(p.Port)))
		number := fmt.Sprintf("%s/%d", p.Protocol, p.Port)
		v.add(numbers.Has(number), field.Duplicate(path, number))
		numbers.Insert(number)
		oneOf(v, path.Child("protocol"), p.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
	}
}

func (v *violations) portName(name string, path *field.Path, names sets.Set[string]) {
	if name != "" {
		v.invalid(path, name, utilvalidation.IsDNS1123Label(name))
		v.add(names.Has(name), field.Duplicate(path, name))
	}
	names.Insert(name)
}

const (
	maxEndpoints = 1000 // per slice; pkg/apis/discovery/validation
	maxAddresses = 100  // per endpoint
	maxPorts     = 20_000
)

// slice applies the rules of pkg/apis/discovery/validation that matter for dialling.
func (v *violations) slice(o *discoveryv1.EndpointSlice) {
	v.metadata(&o.ObjectMeta, true, apivalidation.NameIsDNSSubdomain)
	v.add(o.Labels[discoveryv1.LabelServiceName] == "",
		field.Required(field.NewPath("metadata").Child("labels").Key(discoveryv1.LabelServiceName),
			"it says which Service the endpoints belong to"))
	if kind := field.NewPath("addressType"); o.AddressType == "" {
		v.add(true, field.Required(kind, ""))
	} else {
		oneOf(v, kind, o.AddressType,
			discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)
	}
	endpoints := field.NewPath("endpoints")
	if len(o.Endpoints) > maxEndpoints {
		v.add(true, field.TooMany(endpoints, len(o.Endpoints), maxEndpoints))
		return
	}
	for i := range o.Endpoints {
		v.addresses(o.Endpoints[i].Addresses, o.AddressType, endpoints.Index(i).Child("addresses"))
	}
	ports := field.NewPath("ports")
	if len(o.Ports) > maxPorts {
		v.add(true, field.TooMany(ports, len(o.Ports), maxPorts))
		return
	}
	names := sets.New[string]()
	for i := range o.Ports {
		p, path := &o.Ports[i], ports.Index(i)
		v.add(names.Has(*p.Name), field.Duplicate(path.Child("name"), *p.Name)) // of unnamed ones, too
		v.portName(*p.Name, path.Child("name"), sets.New[string]())
		names.Insert(*p.Name)
		oneOf(v, path.Child("protocol"), *p.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
		if p.Port == nil {
			v.add(true, field.Required(path.Child("port"), ""))
			continue
		}
		v.invalid(path.Child("port"), *p.Port, utilvalidation.IsValidPortNum(int(*p.Port)))
	}
}

func (v *violations) addresses(addresses []string, kind discoveryv1.AddressType, path *field.Path) {
	v.add(len(addresses) == 0, field.Required(path, "must contain at least 1 address"))
	if len(addresses) > maxAddresses {
		v.add(true, field.TooMany(path, len(addresses), maxAddresses))
		return
	}
	for i, a := range addresses {
		at := path.Index(i)
		if kind == discoveryv1.AddressTypeFQDN {
			v.invalid(at, a, utilvalidation.IsDNS1123Subdomain(strings.TrimSuffix(a, ".")))
			continue
		}
		addr, err := netip.ParseAddr(a)
		switch {
		case err != nil || addr.Zone() != "":
			v.add(true, field.Invalid(at, a, "must be a valid IP address"))
		case kind == discoveryv1.AddressTypeIPv4 && !addr.Is4():
			v.add(true, field.Invalid(at, a, "must be an IPv4 address"))
		case kind == discoveryv1.AddressTypeIPv6 && !addr.Is6():
			v.add(true, field.Invalid(at, a, "must be an IPv6 address"))
		}
	}
}

// data validates a ConfigMap or a Secret, which may have equally many bytes: two maps with the names of their fields.
// No key may be in both, unless the first map overrides the second one.
func (v *violations) data(o *metav1.ObjectMeta, texts, data string, text map[string]string, raw map[string][]byte,
	overrides bool) {
	v.metadata(o, true, apivalidation.NameIsDNSSubdomain)
	total := 0
	for k, value := range text {
		at := field.NewPath(texts).Key(k)
		v.invalid(at, k, utilvalidation.IsConfigMapKey(k))
		_, both := raw[k]
		v.add(both && !overrides, field.Invalid(at, k, "duplicate of key present in "+data))
		total += len(value)
	}
	for k, value := range raw {
		v.invalid(field.NewPath(data).Key(k), k, utilvalidation.IsConfigMapKey(k))
		total += len(value)
	}
	v.add(total > corev1.MaxSecretSize, field.TooLong(field.NewPath("data"), "", corev1.MaxSecretSize))
}

// roleName validates names of roles and bindings: they are path segments, and may have colons.
func roleName(name string, _ bool) []string { return content.IsPathSegmentName(name) }

// role applies the rules of pkg/apis/rbac/validation. Aggregated roles are refused: no controller aggregates them here.
func (v *violations) role(o *rbacv1.ClusterRole) {
	v.metadata(&o.ObjectMeta, false, roleName)
	v.add(o.AggregationRule != nil,
		field.Forbidden(field.NewPath("aggregationRule"), "nothing aggregates roles here: list the rules"))
	for i := range o.Rules {
		r, at := &o.Rules[i], field.NewPath("rules").Index(i)
		v.add(len(r.Verbs) == 0, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
		if len(r.NonResourceURLs) > 0 {
			v.add(len(r.APIGroups) > 0 || len(r.Resources) > 0 || len(r.ResourceNames) > 0,
				field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs,
					"rules cannot apply to both regular resources and non-resource URLs"))
			continue
		}
		v.add(len(r.APIGroups) == 0,
			field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
		v.add(len(r.Resources) == 0,
			field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
	}
}

// binding applies the rules of pkg/apis/rbac/validation.
func (v *violations) binding(o *rbacv1.ClusterRoleBinding) {
	v.metadata(&o.ObjectMeta, false, roleName)
	ref, role := field.NewPath("roleRef"), &o.RoleRef
	oneOf(v, ref.Child("apiGroup"), role.APIGroup, rbacv1.GroupName)
	oneOf(v, ref.Child("kind"), role.Kind, "ClusterRole")
	v.add(role.Name == "", field.Required(ref.Child("name"), ""))
	v.invalid(ref.Child("name"), role.Name, content.IsPathSegmentName(role.Name))
	for i := range o.Subjects {
		s, at := &o.Subjects[i], field.NewPath("subjects").Index(i)
		v.add(s.Name == "", field.Required(at.Child("name"), ""))
		switch s.Kind {
		case rbacv1.ServiceAccountKind:
			if s.Name != "" {
				v.invalid(at.Child("name"), s.Name, apivalidation.ValidateServiceAccountName(s.Name, false))
			}
			v.add(s.Namespace == "", field.Required(at.Child("namespace"), ""))
			oneOf(v, at.Child("apiGroup"), s.APIGroup, "")
		case rbacv1.UserKind, rbacv1.GroupKind:
			oneOf(v, at.Child("apiGroup"), s.APIGroup, rbacv1.GroupName)
		default:
			oneOf(v, at.Child("kind"), s.Kind, rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind)
		}
	}
}
