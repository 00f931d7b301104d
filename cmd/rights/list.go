package rights

import "strings"

// role is a role in a file of deploy/, or a binding to one of Kubernetes' own.
type role struct {
	name, file string
	rules      []rule
}

// Names of API groups and of namespaces.
const (
	aggregation    = "apiregistration.k8s.io"
	authentication = "authentication.k8s.io"
	authorization  = "authorization.k8s.io"
	coordination   = "coordination.k8s.io"
	discovery      = "discovery.k8s.io"
	extensions     = "apiextensions.k8s.io"
	system         = "kube-system"
	fallback       = "default"
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
	noUsers     = "users with certificates, or tokens that Fairlead verifies, get 403"
	noOthers    = "callers who impersonate a ServiceAccount, or have a UID, get 403"
	noPolicy    = "the policy is not followed: what it adds, and what it hides, stays as it was last read"
	noLabels    = "no rule of the policy by namespaceLabels matches"
	noChanges   = "discovery sees changes of CustomResourceDefinitions late"
)

// roles returns all rules of the roles in deploy/ that are for Fairlead's own account. A test
// compares them with the files.
func roles(f Features) []role {
	namespace, name, _ := strings.Cut(f.Policy, "/")
	return []role{
		{"ClusterRole system:fairlead", "deploy/base/rbac.yaml", []rule{
			{f.APIServices, 8, "list watch", aggregation, "apiservices", "", "", noTable},
			{f.Services, 9, "list watch", "", "services", "", "", noBackends},
			{f.Services || f.Servers == "endpointslice", 10, "list watch", discovery, "endpointslices", "", "", noBackends},
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
			{f.Impersonation, 14, "impersonate", authentication, "userextras/authentication.kubernetes.io/credential-id", "", "", noUsers},
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
			{f.Events && f.Policy != "", 19, "create patch", "", "events", system, "", noEvents},
			{f.Events, 20, "create", coordination, "leases", system, "", noEvents},
		}},
		{"Role fairlead-entrypoint", "deploy/components/entrypoint/rbac.yaml", []rule{
			{f.Entrypoint || f.Servers == "lease", 7, "list", coordination, "leases", system, "", noEndpoints},
			{f.Entrypoint, 7, "create update delete", coordination, "leases", system, "", noEndpoints},
			{f.Entrypoint, 19, "get update", "", "endpoints", fallback, "kubernetes", noEndpoints},
			{f.Entrypoint, 20, "create", "", "endpoints", fallback, "", noEndpoints},
			{f.Entrypoint, 22, "update delete", discovery, "endpointslices", fallback, "kubernetes kubernetes-1 kubernetes-2 kubernetes-3", noEndpoints},
			{f.Entrypoint, 23, "create", discovery, "endpointslices", fallback, "", noEndpoints},
		}},
		{"Role fairlead-policy", "deploy/components/policy/rbac.yaml", []rule{
			{f.Policy != "", 6, "list watch", "", "configmaps", namespace, name, noPolicy},
		}},
		{"ClusterRole system:fairlead-namespaces", "deploy/components/policy/rbac.yaml", []rule{
			{f.NamespaceLabels, 19, "list watch", "", "namespaces", "", "", noLabels},
		}},
		{"ClusterRole system:fairlead-ca-from", "deploy/base/rbac.yaml", bundles(f.Bundles)},
	}
}

func bundles(configMaps []string) (each []rule) {
	for _, c := range configMaps {
		namespace, name, _ := strings.Cut(c, "/")
		each = append(each, rule{true, 35, "list watch", "", "configmaps", namespace, name, noBundles})
	}
	return each
}
