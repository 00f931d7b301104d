package registry

import (
	"cmp"
	"strings"

	"k8s.io/apimachinery/pkg/version"
)

// The two orders of Kubernetes break ties between groups differently: the legacy APIGroupList by
// the name of the APIService (version first: v1.zebra before v1beta1.ape), aggregated discovery by
// the name of the group. Each has one comparison here, and no other code compares: kube-aggregator
// has three sorts, one of which has compared an element with itself since 2017
// (openapi/aggregator/priority.go:49).

// compareLegacy orders APIServices: groupPriorityMinimum descending, then name.
func compareLegacy(a, b *Entry) int {
	return cmp.Or(
		cmp.Compare(b.Object.Spec.GroupPriorityMinimum, a.Object.Spec.GroupPriorityMinimum),
		strings.Compare(a.Name, b.Name),
	)
}

// Compare orders groups for aggregated discovery, like Table.Groups: highest priority first, then
// name. It also places groups that are not in the table among those that are.
func (g *Group) Compare(other *Group) int {
	return cmp.Or(cmp.Compare(other.Priority, g.Priority), strings.Compare(g.Name, other.Name))
}

// CompareVersion orders entries of one group, like Group.Entries.
func (e *Entry) CompareVersion(other *Entry) int { return versionOrder{}.compare(e, other) }

// versionOrder compares the versions of a group. It caches the results of Kubernetes' own
// comparison, which costs a microsecond of regular expressions, because a thousand groups have the
// same few versions.
type versionOrder map[[2]string]int

// compare orders by versionPriority descending, then as Kubernetes compares versions (v10 before v2
// before v1beta1 before names that are not Kubernetes versions). Ties are broken by name, so that
// the order is total.
func (o versionOrder) compare(a, b *Entry) int {
	if c := cmp.Compare(b.Object.Spec.VersionPriority, a.Object.Spec.VersionPriority); c != 0 {
		return c
	}
	pair := [2]string{b.GroupVersion.Version, a.GroupVersion.Version}
	c, known := o[pair]
	if !known {
		c = version.CompareKubeAwareVersionStrings(pair[0], pair[1])
		o[pair] = c
	}
	return cmp.Or(c, strings.Compare(a.Name, b.Name))
}
