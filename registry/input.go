package registry

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/internal/reach"
	"github.com/fairlead-proxy/fairlead/registry/builtin"
	"github.com/fairlead-proxy/fairlead/registry/directory"
)

// Input is everything that Build reads. Build modifies none of it. Objects and lists of slices must
// not be modified after they were passed to Build: an equal pointer means unchanged. The maps
// themselves may be modified between builds.
type Input struct {
	// APIServices by name, already validated by their source.
	APIServices map[string]*apiregistrationv1.APIService
	// Services by name.
	Services map[types.NamespacedName]*corev1.Service
	// Slices by the Service that they belong to (label kubernetes.io/service-name). A list is
	// replaced, never modified.
	Slices map[types.NamespacedName][]*discoveryv1.EndpointSlice
	// FallbackServices and FallbackSlices count if Services and Slices lack the name. Nil: none.
	FallbackServices map[types.NamespacedName]*corev1.Service
	FallbackSlices   map[types.NamespacedName][]*discoveryv1.EndpointSlice
	// Touched names the APIServices of which an object has changed since prev: the APIService, its
	// Service, a slice, or a CustomResourceDefinition that it shadows. Build then skips all others.
	// Nil means that any may have changed.
	Touched map[string]struct{}
	// Reports are the prober's reports since prev. Earlier ones are carried over from prev.
	Reports []Report
	// Shadowed are CustomResourceDefinitions of group-versions that are claimed for a remote.
	Shadowed map[schema.GroupVersion]string
	// Options are the settings. Nil means those of prev, else the defaults. With another pointer
	// than that of prev, every entry is rebuilt.
	Options *Options
	// Problems are the faults of the source that belong to no entry. See Table.Problems.
	Problems []directory.Fault
	// Complete reports whether every source has been read once.
	Complete bool
	// Now is the current time, for Since and for the overlap of a replaced CA.
	Now time.Time
}

// backing returns the named Service and its slices, both from one source: a writer of the other
// source must not be able to add an address.
func (in *Input) backing(name types.NamespacedName) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	if s, list := in.Services[name], in.Slices[name]; s != nil || len(list) > 0 {
		return s, list
	}
	return in.FallbackServices[name], in.FallbackSlices[name]
}

// Options are the settings of Build. The zero value means the documented defaults.
type Options struct {
	// ClusterIPRouting sends requests to a Service's ClusterIP rather than to its endpoints
	// (--enable-aggregator-routing=false).
	ClusterIPRouting bool
	// Reach says which addresses endpoints and external names may have. Config.Directory implies
	// its AllowLoopback, unless Config.Cluster or Config.APIServices is set.
	Reach reach.Rules
	// AllowURLs allows the annotation url. Config.Directory and Config.APIServices imply it.
	AllowURLs bool
	// Directory selects the rules of the registries dir: and etcd:, where this process serves
	// apiregistration.k8s.io itself and a claim of a protected group is ignored, so that the group
	// stays Local, rather than refused. New sets it if Config.Directory or Config.APIServices is
	// set.
	Directory bool
	// ProtectedGroups are the groups that no remote may claim, "" or "core" for the core group. Nil
	// means Kubernetes' built-in groups, empty but not nil means none.
	ProtectedGroups []string
	// Defaults are the policy of an APIService without annotations. Zero means: RequestTimeout
	// 60 s, MaxInFlight 400, MaxLongRunning 10,000, CAOverlap 1 min (negative: none),
	// ProbeInterval 10 s, PingTimeout 5 s.
	Defaults Policy
}

// Protects reports whether no remote may claim the group. A remote that claimed a built-in one
// would see every Secret, and could answer every SubjectAccessReview.
func (o *Options) Protects(group string) bool {
	if o.ProtectedGroups == nil {
		// The group extensions is gone, but its name is reserved.
		return builtin.Group(group) || group == "extensions"
	}
	return slices.Contains(o.ProtectedGroups, group) || group == "" && slices.Contains(o.ProtectedGroups, "core")
}
