package registry

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/reach"
)

// Input is everything that Build looks at. Build changes none of it, and nobody may change an object or a list of slices once it was given to
// Build: what is the same pointer is taken to be unchanged. The maps themselves may be changed between builds.
type Input struct {
	// APIServices by name, already validated by their source.
	APIServices map[string]*apiregistrationv1.APIService
	// Services by name.
	Services map[types.NamespacedName]*corev1.Service
	// Slices by the Service that they belong to (label kubernetes.io/service-name). A list is replaced, never changed in place.
	Slices map[types.NamespacedName][]*discoveryv1.EndpointSlice
	// Touched names the APIServices that may not be as in prev because one of their objects has changed: their own, their Service, a slice, what shadows them. It spares Build
	// the look at all others. Nil: any may be.
	Touched map[string]struct{}
	// Reports are the verdicts of the prober since prev. What was reported earlier is carried over from prev.
	Reports []Report
	// Shadowed are the CustomResourceDefinitions that serve a group-version which an APIService sends elsewhere.
	Shadowed map[schema.GroupVersion]string
	// Options are the settings. Nil: all defaults. The same pointer from build to build, else every entry is made anew.
	Options *Options
	// Problems are the faults of the source that belong to no entry. See Table.Problems.
	Problems []directory.Fault
	// Complete says that every source has been read once.
	Complete bool
	// Now is the time for Since.
	Now time.Time
}

// Options are the settings of Build. The zero value holds the documented defaults.
type Options struct {
	// ClusterIPRouting sends requests to a Service's ClusterIP rather than to its endpoints (--enable-aggregator-routing=false).
	ClusterIPRouting bool
	// Reach says which addresses endpoints and external names may have. Config.Directory implies its
	// AllowLoopback.
	Reach reach.Rules
	// AllowURLs admits backends that the annotation url names (--allow-url-backends). Config.Directory implies it.
	AllowURLs bool
	// Directory selects the rules of the dir: registry: this process serves apiregistration.k8s.io itself, and a protected group that a remote
	// claims stays local rather than being refused. New sets it when Config.Directory is set.
	Directory bool
	// ProtectedGroups are the groups that no remote may claim, "" or "core" for the core group. Nil: Kubernetes' built-in groups. Empty but not
	// nil: none.
	ProtectedGroups []string
	// Defaults are the policy of an APIService without annotations. A zero field means: RequestTimeout 60 s, MaxInFlight 400, MaxLongRunning
	// 10,000, CAOverlap 1 min (negative: none), ProbeInterval 10 s, PingTimeout 5 s.
	Defaults Policy
}

// builtinGroups are the groups that kube-apiserver v1.36 registers for itself (cmd/kube-apiserver/app/aggregator.go and
// pkg/controlplane/apiserver/aggregator.go). A remote that claims one would see every Secret and could answer every
// SubjectAccessReview.
func builtinGroups() []string {
	return []string{
		"", "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps", "authentication.k8s.io",
		"authorization.k8s.io", "autoscaling", "batch", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io",
		"events.k8s.io", "extensions", "flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "networking.k8s.io",
		"node.k8s.io", "policy", "rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
		"storagemigration.k8s.io",
	}
}

// protects reports whether no remote may claim the group.
func (o *Options) protects(group string) bool {
	groups := o.ProtectedGroups
	if groups == nil {
		groups = builtinGroups()
	}
	for _, g := range groups {
		if g == group || (g == "core" && group == "") {
			return true
		}
	}
	return false
}
