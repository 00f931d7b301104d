package registry

import (
	"cmp"
	"strings"

	"k8s.io/apimachinery/pkg/version"
)

// The two orders of Kubernetes differ in how a tie between groups is broken: the legacy APIGroupList by the name of the APIService
// (version first: v1.zebra before v1beta1.ape), aggregated discovery by the name of the group. Each has one comparison here, and nobody else
// compares: kube-aggregator had three sorts, one of which compares an element with itself since 2017 (openapi/aggregator/priority.go:49).

// compareLegacy orders APIServices: groupPriorityMinimum descending, then name.
func compareLegacy(a, b *Entry) int {
	return cmp.Or(
		cmp.Compare(b.Object.Spec.GroupPriorityMinimum, a.Object.Spec.GroupPriorityMinimum),
		strings.Compare(a.Name, b.Name),
	)
}

// Compare orders groups for aggregated discovery, as Table.Groups has them: highest priority first, then name. It is for whoever must place a group that the table
// does not name among those that it does.
func (g *Group) Compare(other *Group) int {
	return cmp.Or(cmp.Compare(other.Priority, g.Priority), strings.Compare(g.Name, other.Name))
}

// CompareVersion orders entries of one group, as Group.Entries has them.
func (e *Entry) CompareVersion(other *Entry) int { return versionOrder{}.compare(e, other) }

// versionOrder compares the versions of one group. It remembers what Kubernetes' own comparison said, which costs a microsecond of regular
// expressions, because a thousand groups have the same few versions.
type versionOrder map[[2]string]int

// compare orders by versionPriority descending, then as Kubernetes compares versions (v10 before v2 before v1beta1 before anything that is no
// Kubernetes version). Versions that it takes for equal are told apart by name, so that the order is total.
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
