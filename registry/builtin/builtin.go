// Package builtin has the priorities of the group-versions that kube-apiserver registers for itself.
package builtin

import "k8s.io/apimachinery/pkg/runtime/schema"

type group struct {
	priority int32
	versions map[string]int32
}

// groups are those that kube-apiserver v1.37 registers for itself (aggregator.go in cmd/kube-apiserver/app and
// pkg/controlplane/apiserver). apiregistration.k8s.io has no APIService and comes first, above the highest (20000).
var groups = map[string]group{ //nolint:gochecknoglobals // nothing writes it
	"apiregistration.k8s.io":       {20001, map[string]int32{"v1": 1}},
	"":                             {18000, map[string]int32{"v1": 1}},
	"apps":                         {17800, map[string]int32{"v1": 15}},
	"events.k8s.io":                {17750, map[string]int32{"v1": 15, "v1beta1": 5}},
	"authentication.k8s.io":        {17700, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"authorization.k8s.io":         {17600, map[string]int32{"v1": 15}},
	"autoscaling":                  {17500, map[string]int32{"v1": 15, "v2": 30, "v2beta1": 9, "v2beta2": 1}},
	"batch":                        {17400, map[string]int32{"v1": 15, "v1beta1": 9, "v2alpha1": 9}},
	"certificates.k8s.io":          {17300, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"networking.k8s.io":            {17200, map[string]int32{"v1": 15, "v1beta1": 9}},
	"policy":                       {17100, map[string]int32{"v1": 15, "v1beta1": 9}},
	"rbac.authorization.k8s.io":    {17000, map[string]int32{"v1": 15}},
	"storage.k8s.io":               {16800, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"apiextensions.k8s.io":         {16700, map[string]int32{"v1": 15}},
	"admissionregistration.k8s.io": {16700, map[string]int32{"v1": 15, "v1beta1": 12, "v1alpha1": 9}},
	"scheduling.k8s.io":            {16600, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha3": 3, "v1alpha2": 2}},
	"coordination.k8s.io":          {16500, map[string]int32{"v1": 15, "v1beta1": 13, "v1alpha2": 12}},
	"node.k8s.io":                  {16300, map[string]int32{"v1": 15, "v1alpha1": 1, "v1beta1": 9}},
	"discovery.k8s.io":             {16200, map[string]int32{"v1": 15, "v1beta1": 12}},
	"resource.k8s.io":              {16200, map[string]int32{"v1": 21, "v1beta2": 15, "v1beta1": 9, "v1alpha3": 1}},
	"flowcontrol.apiserver.k8s.io": {16100, map[string]int32{
		"v1": 21, "v1beta3": 18, "v1beta2": 15, "v1beta1": 12, "v1alpha1": 9,
	}},
	"internal.apiserver.k8s.io": {16000, map[string]int32{"v1alpha1": 9}},
	"storagemigration.k8s.io":   {15800, map[string]int32{"v1": 15, "v1beta1": 9}},
	"lifecycle.k8s.io":          {15700, map[string]int32{"v1alpha1": 1}},
}

// Group reports whether a group is built in.
func Group(name string) bool {
	_, ok := groups[name]
	return ok
}

// Priorities returns the priorities of a group-version of kube-apiserver, and reports whether its group is built in. A
// version that is not known comes last in its group. A group that is not built in is a CRD's.
func Priorities(gv schema.GroupVersion) (ofGroup, ofVersion int32, ok bool) {
	g, ok := groups[gv.Group]
	if !ok {
		return 1000, 100, false // as crdregistration sets them
	}
	return g.priority, max(g.versions[gv.Version], 1), true
}
