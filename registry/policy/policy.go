// Package policy has the document with which a cluster's administrator says which server has what of an API, and who
// may ask how much: apiVersion fairlead.dev/v1, kind Policy (--policy). Its parent makes backends of its routes; this
// package says which request a backend is meant for, and which rule stands in its way.
//
// What is compiled is immutable but for the state of limits, and safe for concurrent use.
package policy

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Policy is the document. Several are one: their routes and rules are added up, in the order of their files.
type Policy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Routes []Route      `json:"routes"` // what it says of APIServices
	Rules  []AccessRule `json:"rules"`  // what it says of requests. The first that matches decides
}

// DeepCopyObject implements runtime.Object. The copy shares what is immutable.
func (p *Policy) DeepCopyObject() runtime.Object { return new(*p) }

// AddToScheme adds the document to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(schema.GroupVersion{Group: "fairlead.dev", Version: "v1"}, &Policy{})
	return nil
}

// Route says what happens to the requests of one APIService.
type Route struct {
	APIService string `json:"apiService"` // its name, such as v1beta1.external.metrics.k8s.io
	Hidden     bool   `json:"hidden"`     // the group-version is answered with 404, and is in no document
	// Backends are further servers. A request goes to the first whose When matches, and else to the APIService's own.
	Backends []Backend `json:"backends"`
}

// Backend is a further server of an APIService. Service, CABundle and InsecureSkipTLSVerify are as in its spec.
type Backend struct {
	// Name is unique in its route, and seen in errors. Empty means that of the Service.
	Name    string                              `json:"name"`
	Service *apiregistrationv1.ServiceReference `json:"service"`
	// URL and CAFrom are as the annotations url and ca-from of an APIService.
	URL                   string `json:"url"`
	CABundle              []byte `json:"caBundle"`
	CAFrom                string `json:"caFrom"`
	InsecureSkipTLSVerify bool   `json:"insecureSkipTLSVerify"`
	// Annotations are as those of an APIService, such as fairlead.dev/request-timeout.
	Annotations map[string]string `json:"annotations"`
	When        *When             `json:"when"`    // which requests are for it. Required unless Standby is set
	Standby     bool              `json:"standby"` // it answers for the APIService's own while that is unavailable
}

// When is a condition on requests: each field that is set must match, by one of its values. A trailing * is a prefix.
type When struct {
	// Namespaces never match a request for all namespaces.
	Namespaces []string `json:"namespaces"`
	// NamespaceLabels selects namespaces by their labels. One that is unknown matches nothing.
	NamespaceLabels *metav1.LabelSelector `json:"namespaceLabels"`
	// Resources are as in a role: pods are all pods, with subresources; pods/exec is exec alone.
	Resources []string `json:"resources"`
	Names     []string `json:"names"`
	// LabelKeys are labels that the request's label selector requires.
	LabelKeys  []string `json:"labelKeys"`
	Users      []string `json:"users"`
	Groups     []string `json:"groups"`
	UserAgents []string `json:"userAgents"`
}

// Request is what conditions look at.
type Request struct {
	// Namespace and the others are those of the request's path. Empty means that it has none.
	Namespace, Resource, Subresource, Name string
	// Verb, APIGroup and Path, which is decoded, are as in RBAC. IsResource says that it is to a resource, not to Path.
	Verb, APIGroup, Path string
	IsResource           bool
	WholeList            bool       // see AccessRule.WholeLists
	Source               netip.Addr // the client's address
	LabelSelector        string     // as in the query, decoded
	User                 user.Info  // the effective one. Nil means that nobody knows
	UserAgent            string     // as the client sends it

	parsed   bool
	required labels.Requirements // of LabelSelector, once they are parsed: that takes some 100 µs a kilobyte
}

func (w *When) lists(f func(field string, values []string)) {
	f("namespaces", w.Namespaces)
	f("resources", w.Resources)
	f("names", w.Names)
	f("labelKeys", w.LabelKeys)
	f("users", w.Users)
	f("groups", w.Groups)
	f("userAgents", w.UserAgents)
}

// fails returns the first field that does not match, NamespaceLabels aside. Empty: all do.
func (w *When) fails(r *Request) string {
	listed := func(group string) bool { return matches(w.Groups, group) }
	switch {
	case w.Namespaces != nil && !matches(w.Namespaces, r.Namespace):
		return "namespaces"
	case w.Resources != nil && !r.ofResource(w.Resources):
		return "resources"
	case w.Names != nil && !matches(w.Names, r.Name):
		return "names"
	case w.Users != nil && (r.User == nil || !matches(w.Users, r.User.GetName())):
		return "users"
	case w.Groups != nil && (r.User == nil || !slices.ContainsFunc(r.User.GetGroups(), listed)):
		return "groups"
	case w.UserAgents != nil && !matches(w.UserAgents, r.UserAgent):
		return "userAgents"
	case w.LabelKeys != nil && !r.selects(w.LabelKeys):
		return "labelKeys"
	}
	return ""
}

// matches reports whether one of the values matches. Nothing matches what a request does not have.
func matches(values []string, s string) bool {
	return s != "" && slices.ContainsFunc(values, func(v string) bool {
		prefix, wild := strings.CutSuffix(v, "*")
		return v == s || wild && strings.HasPrefix(s, prefix)
	})
}

func (r *Request) ofResource(values []string) bool {
	return matches(values, r.Resource) || r.Subresource != "" && matches(values, r.Resource+"/"+r.Subresource)
}

// selects reports whether the label selector requires one of the keys.
func (r *Request) selects(keys []string) bool {
	if !r.parsed && r.LabelSelector != "" {
		r.required, _ = labels.ParseToRequirements(r.LabelSelector) //fairlead:boundary 1 KiB, else at the desk
	}
	r.parsed = true
	return slices.ContainsFunc(r.required, func(q labels.Requirement) bool {
		switch q.Operator() {
		case selection.DoesNotExist, selection.NotEquals, selection.NotIn:
			return false // it also selects what does not have the label
		}
		return matches(keys, q.Key())
	})
}

// Rule is a compiled Backend: when it gets requests.
type Rule struct {
	Where string // its place in the policy, as file:line
	When  *When  // its condition. Nil means a standby

	namespaces labels.Selector // of When
	known      *Namespaces
}

// Fails returns the field of the Backend by which a request is not for it. Empty: it is. None is for a standby.
func (r *Rule) Fails(q *Request) string {
	if r.When == nil {
		return "standby"
	}
	field := r.When.fails(q)
	if field == "" && r.namespaces != nil && !r.known.match(q.Namespace, r.namespaces) {
		return "namespaceLabels"
	}
	return field
}

// Namespaces are the labels of the cluster's namespaces. The zero value has none. It is safe for concurrent use.
type Namespaces struct {
	// Listed says that they were read, or may not be. Forbidden says that they may not be.
	Listed, Forbidden atomic.Bool

	labels sync.Map // :: name → labels.Set
}

// Set stores the labels of a namespace.
func (n *Namespaces) Set(name string, l labels.Set) { n.labels.Store(name, l) }

// Keep forgets all namespaces but those for which f is true.
func (n *Namespaces) Keep(f func(name string) bool) {
	for name := range n.labels.Range {
		if !f(name.(string)) { //nolint:forcetypeassert // nothing else is stored
			n.labels.Delete(name)
		}
	}
}

func (n *Namespaces) match(name string, by labels.Selector) bool {
	found, known := n.labels.Load(name)
	return known && by.Matches(found.(labels.Set)) //nolint:forcetypeassert // nothing else is stored
}

const maxValues = 100 // of a list of a condition, which every request may search

// Rule compiles when the backend gets requests. Known may be nil.
func (b *Backend) Rule(where string, at *field.Path, known *Namespaces) (r *Rule, wrong field.ErrorList) {
	r = &Rule{Where: where, When: b.When, known: known}
	if (b.When == nil) != b.Standby {
		return r, field.ErrorList{field.Required(at.Child("when"), "either when, or standby: true")}
	}
	if b.When == nil {
		return r, nil
	}
	at = at.Child("when")
	given := b.When.NamespaceLabels != nil
	b.When.lists(func(name string, values []string) {
		given, wrong = given || values != nil, append(wrong, checkValues(at.Child(name), values)...)
	})
	if !given {
		wrong = append(wrong, field.Required(at, "a condition: without one it would get all requests"))
	}
	if l, at := b.When.NamespaceLabels, at.Child("namespaceLabels"); l != nil && known == nil {
		wrong = append(wrong, field.Forbidden(at, "there is no local apiserver, which has namespaces"))
	} else if l != nil {
		var err error
		if r.namespaces, err = metav1.LabelSelectorAsSelector(l); err != nil {
			wrong = append(wrong, field.Invalid(at, "", err.Error()))
		}
	}
	return r, wrong
}
