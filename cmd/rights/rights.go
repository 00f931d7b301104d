// Package rights lists what Fairlead may do at the local apiserver as itself: the rules of the roles in deploy/, each
// with its line and what fails without it. serve asks for its own, lint for those of the account that it will use.
//
// It holds no state and does no I/O.
package rights

import (
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Right is one thing that Fairlead may do.
type Right struct {
	// Verb is a verb of the API. Group is empty for the core group. Resource may have a subresource after a slash.
	Verb, Group, Resource string
	Namespace, Name       string // limit it. Empty means all of them
	// Role is the kind and the name of the role that gives it, or of its binding if Kubernetes has the role. Manifest
	// is the file and the line of the rule; or that it is Kubernetes' own.
	Role, Manifest string
	For            string // what fails without it, in the words of users
	// Narrow means that operators are advised to grant it only for some names, and not at all if
	// they do not use it: that it is missing for all names is no fault. See Ungranted.
	Narrow bool
}

// String returns what a message calls it: create subjectaccessreviews.authorization.k8s.io.
func (r Right) String() string {
	s := r.Verb + " " + schema.GroupResource{Group: r.Group, Resource: r.Resource}.String()
	if r.Name != "" {
		s += " " + r.Name
	}
	if r.Namespace != "" {
		s += " in namespace " + r.Namespace
	}
	return s
}

// Attributes returns it as access reviews ask for it.
func (r Right) Attributes() *authorizationv1.ResourceAttributes {
	resource, sub, _ := strings.Cut(r.Resource, "/")
	return &authorizationv1.ResourceAttributes{
		Verb: r.Verb, Group: r.Group, Version: "*", Resource: resource, Subresource: sub,
		Namespace: r.Namespace, Name: r.Name,
	}
}

// Ungranted returns those of the Narrow rights that no rule grants for any name, if users notice
// that. Only RBAC lists its rules: what another authorizer allows for some names is not known.
func Ungranted(narrow []Right, granted []authorizationv1.ResourceRule) []Right {
	rules := make([]rbacv1.PolicyRule, 0, len(granted))
	for _, g := range granted { // without names, so that a rule for some of them covers all
		rules = append(rules, rbacv1.PolicyRule{Verbs: g.Verbs, APIGroups: g.APIGroups, Resources: g.Resources})
	}
	return slices.DeleteFunc(slices.Clone(narrow), func(r Right) bool {
		some, _ := validation.Covers(rules, []rbacv1.PolicyRule{{
			Verbs: []string{r.Verb}, APIGroups: []string{r.Group}, Resources: []string{r.Resource},
		}})
		return some || r.Users() == ""
	})
}

// Users returns what users notice if it is missing, as a sentence. Empty means nothing.
func (r *Right) Users() string {
	if rest, ok := strings.CutPrefix(r.For, "users "); ok {
		return "Users " + rest
	}
	return ""
}

// Features are the parts of Fairlead that need rights. Zero means none but those that every one
// needs with a local apiserver: tokens are reviewed there, and the header names, and perhaps the
// CAs, are read from the ConfigMap kube-system/extension-apiserver-authentication.
type Features struct {
	// APIServices are read from the cluster, and Services with their EndpointSlices, together with
	// the CustomResourceDefinitions that APIServices hide. Requests are authorized by it.
	APIServices, Services, Requests bool
	// Impersonation is --local-identity=impersonate, Status --write-status, Events --emit-events
	// Entrypoint --publish-kubernetes-endpoints, and Critical --critical-apiservices.
	Impersonation, Status, Events, Entrypoint, Critical bool
	Servers                                             string // --local-apiservers-from
	// Policy is the ConfigMap of the policy, with namespace. NamespaceLabels: it selects by them.
	Policy          string
	NamespaceLabels bool
	// Bundles are the ConfigMaps that the annotation fairlead.dev/ca-from names, with namespace, and /NAME for a
	// ClusterTrustBundle: a role may be for one of them only.
	Bundles []string
}

// Shipped are the features of a Fairlead without further flags: those of deploy/base.
func Shipped() Features { return Features{APIServices: true, Services: true, Requests: true} }

// rule is a rule of a role: one line of a file in deploy/.
type rule struct {
	needed                  bool
	line                    int
	verbs, group, resources string // verbs, resources and names are separated by spaces
	in, names               string // empty means all
	why                     string
}

// Needed returns the rights that the features need.
func Needed(f Features) (needed []Right) {
	for _, r := range roles(f) {
		for _, rule := range r.rules {
			if rule.needed {
				needed = append(needed, rule.rights(r)...)
			}
		}
	}
	return needed
}

func (r *rule) rights(of role) (all []Right) {
	for resource := range strings.SplitSeq(r.resources, " ") {
		for name := range strings.SplitSeq(r.names, " ") {
			for verb := range strings.SplitSeq(r.verbs, " ") {
				all = append(all, Right{
					Verb: verb, Group: r.group, Resource: resource, Namespace: r.in, Name: name,
					Role: of.name, Manifest: strings.TrimSuffix(fmt.Sprintf("%s:%d", of.file, r.line), ":0"),
					For: r.why, Narrow: verb == "impersonate",
				})
			}
		}
	}
	return all
}

// role is a role in a file of deploy/, or a binding to one of Kubernetes' own.
type role struct {
	name, file string
	rules      []rule
}

const (
	aggregation    = "apiregistration.k8s.io"
	authentication = "authentication.k8s.io"
	authorization  = "authorization.k8s.io"
	certificates   = "certificates.k8s.io"
	coordination   = "coordination.k8s.io"
	discovery      = "discovery.k8s.io"
	extensions     = "apiextensions.k8s.io"
	system         = "kube-system"
	fallback       = "default"
	extras         = "userextras/authentication.kubernetes.io/credential-id"
	published      = "kubernetes kubernetes-1 kubernetes-2 kubernetes-3"
)

// What fails without a right.
const (
	noTable     = "changes of APIServices are not seen, and a Fairlead that starts never becomes ready"
	noBackends  = "no extension server is found"
	noShadows   = "CustomResourceDefinitions that an APIService hides are not reported"
	noTokens    = "users with tokens get 503 from extension servers"
	noRequests  = "users without system:masters get 503 from extension servers and for discovery"
	noNames     = "a Fairlead that starts never becomes ready, and its users with certificates get 503"
	noBundles   = "APIServices with the annotation fairlead.dev/ca-from are not verified"
	noStatus    = "the condition fairlead.dev/Available is not written"
	noEvents    = "no Events are emitted"
	noEndpoints = "the Service kubernetes does not follow this Fairlead"
	noServers   = "no kube-apiserver is found but those of --local-apiserver"
	noReplicas  = "no replica knows which critical APIServices the others reach: all are ready"
	noUsers     = "users with certificates, or tokens that Fairlead verifies, get 403"
	noOthers    = "callers who impersonate a ServiceAccount, or have a UID, get 403"
	noPolicy    = "the policy is not followed: what it adds, and what it hides, stays as it was last read"
	noLabels    = "no rule of the policy by namespaceLabels matches"
	noChanges   = "discovery sees changes of CustomResourceDefinitions late"
)

// roles returns all rules in deploy/ for Fairlead's own account. A test compares them with the files.
func roles(f Features) []role {
	namespace, name, _ := strings.Cut(f.Policy, "/")
	sliced := f.Services || f.Servers == "endpointslice"
	return []role{
		{"ClusterRole system:fairlead", "deploy/base/rbac.yaml", []rule{
			{f.APIServices, 8, "list watch", aggregation, "apiservices", "", "", noTable},
			{f.Services, 9, "list watch", "", "services", "", "", noBackends},
			{sliced, 10, "list watch", discovery, "endpointslices", "", "", noBackends},
			{f.Entrypoint && !sliced, 10, "list", discovery, "endpointslices", fallback, "", noEndpoints},
			{f.Services, 12, "get list", extensions, "customresourcedefinitions", "", "", noShadows},
			{true, 14, "create", authentication, "tokenreviews", "", "", noTokens},
			{f.Requests, 15, "create", authorization, "subjectaccessreviews", "", "", noRequests},
		}},
		{"RoleBinding fairlead-authentication-reader", "deploy/base/rbac.yaml", []rule{
			{true, 26, "list watch", "", "configmaps", system, "extension-apiserver-authentication", noNames},
		}},
		{"ClusterRole system:fairlead-impersonate", "deploy/overlays/managed/rbac.yaml", []rule{
			{f.Impersonation, 8, "impersonate", "", "users groups", "", "", noUsers},
			{f.Impersonation, 10, "impersonate", "", "serviceaccounts", "", "", noOthers},
			{f.Impersonation, 12, "impersonate", authentication, "uids", "", "", noOthers},
			{f.Impersonation, 14, "impersonate", authentication, extras, "", "", noUsers},
			{f.Impersonation, 16, "watch", extensions, "customresourcedefinitions", "", "", noChanges},
		}},
		{"ClusterRole system:fairlead-status", "deploy/components/write-status/rbac.yaml", []rule{
			{f.Status, 6, "patch", aggregation, "apiservices/status", "", "", noStatus},
		}},
		{"Role fairlead-status", "deploy/components/write-status/rbac.yaml", []rule{
			{f.Status, 18, "get update", coordination, "leases", system, "fairlead-status", noStatus},
			{f.Status, 19, "create", coordination, "leases", system, "", noStatus},
		}},
		{"Role fairlead-events", "deploy/components/events/rbac.yaml", []rule{
			{f.Events, 6, "create patch", "", "events", fallback, "", noEvents},
			{f.Events, 18, "get update", coordination, "leases", system, "fairlead-events", noEvents},
			{f.Events && f.Policy != "", 19, "create patch", "", "events", namespace, "", noEvents},
			{f.Events, 20, "create", coordination, "leases", system, "", noEvents},
		}},
		{"Role fairlead-entrypoint", "deploy/components/entrypoint/rbac.yaml", []rule{
			{f.Entrypoint, 7, "list create update delete", coordination, "leases", system, "", noEndpoints},
			{f.Entrypoint, 19, "get update", "", "endpoints", fallback, "kubernetes", noEndpoints},
			{f.Entrypoint, 20, "create", "", "endpoints", fallback, "", noEndpoints},
			{f.Entrypoint, 22, "update delete", discovery, "endpointslices", fallback, published, noEndpoints},
			{f.Entrypoint, 23, "create", discovery, "endpointslices", fallback, "", noEndpoints},
		}},
		{"Role fairlead-servers", "deploy/components/lease/rbac.yaml", []rule{
			{f.Servers == "lease", 6, "list", coordination, "leases", system, "", noServers},
		}},
		{"Role fairlead-critical-apiservices", "deploy/components/critical-apiservices/rbac.yaml", []rule{
			{f.Critical, 7, "list create update delete", coordination, "leases", system, "", noReplicas},
		}},
		{"Role fairlead-policy", "deploy/components/policy/rbac.yaml", []rule{
			{f.Policy != "", 6, "list watch", "", "configmaps", namespace, name, noPolicy},
		}},
		{"ClusterRole system:fairlead-namespaces", "deploy/components/policy/rbac.yaml", []rule{
			{f.NamespaceLabels, 19, "list watch", "", "namespaces", "", "", noLabels},
		}},
		{"ClusterRole system:fairlead-ca-from", "deploy/base/rbac.yaml", bundles(f.Bundles, false)},
		// This one is bound to all ServiceAccounts.
		{"ClusterRole system:cluster-trust-bundle-discovery", "Kubernetes' own", bundles(f.Bundles, true)},
	}
}

// BundlesOf returns the Features.Bundles of APIServices.
func BundlesOf(entries []*registry.Entry) (all []string) {
	for _, e := range entries {
		if e.Backend != nil && e.Backend.CAFrom != "" {
			ref, _ := e.Backend.Reference()
			all = append(all, ref.String())
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(all)))
}

func bundles(objects []string, ofCluster bool) (each []rule) {
	for _, o := range objects {
		switch namespace, name, _ := strings.Cut(o, "/"); {
		case namespace != "" && !ofCluster:
			each = append(each, rule{true, 35, "list watch", "", "configmaps", namespace, name, noBundles})
		case namespace == "" && ofCluster:
			each = append(each, rule{true, 0, "list watch", certificates, "clustertrustbundles", "", name, noBundles})
		}
	}
	return each
}
