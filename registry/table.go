package registry

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/fairlead-proxy/fairlead/registry/directory"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// Table is one immutable state of the set of APIServices. Any goroutine may call its methods.
type Table struct {
	generation uint64
	complete   bool
	entries    []*Entry
	servers    []*Entry // entries, each followed by those of its Further
	policy     *routings
	groups     []*Group
	byGroup    map[string]int // :: name → index in groups; shared by successive tables while it is the same
	problems   []directory.Fault
	options    *Options
	rebuildAt  time.Time // when Build must run without a change, because a Backend loses its Owner. Zero means never
	superseded chan struct{}

	once sync.Once // makes sent, see Sent
	sent *Table
}

// Group is a group of the table, its versions in order of preference. An unchanged one stays the same pointer.
type Group struct {
	Name     string   // the API group; empty for core
	Priority int32    // the highest groupPriorityMinimum of its versions
	Entries  []*Entry // its versions: versionPriority descending, then Kubernetes' version order

	versions map[string]*Entry // for groups with many. Nil means linear search
}

// Generation counts the tables of this process, from 1. It only ever grows.
func (t *Table) Generation() uint64 { return t.generation }

// Complete reports whether every source had been read once when this table was built. Until then a path that matches
// nothing is unknown, not absent, and must get 503: garbage collection and namespace deletion take a 404 as "gone".
func (t *Table) Complete() bool { return t.complete }

// Superseded returns a channel that is closed once a newer table is stored.
func (t *Table) Superseded() <-chan struct{} { return t.superseded }

// Entries returns all entries in legacy order: groupPriorityMinimum descending, then name. Do not change the slice.
func (t *Table) Entries() []*Entry { return t.entries }

// Servers returns all entries, each followed by its Further. The caller must not change the slice.
func (t *Table) Servers() []*Entry { return t.servers }

// Claimed returns the group-versions of Entries that are not Local, in their order.
func (t *Table) Claimed() (claimed []schema.GroupVersion) {
	for _, e := range t.entries {
		if !e.Local() {
			claimed = append(claimed, e.GroupVersion)
		}
	}
	return claimed
}

// Groups returns the groups in aggregated discovery's order: priority descending, then name. Do not change the slice.
func (t *Table) Groups() []*Group { return t.groups }

// GroupsWith returns Groups as it would be with more entries.
func (t *Table) GroupsWith(more []*Entry) []*Group {
	return t.of(slices.Concat(t.entries, more)).groups
}

// of makes a table of other entries at the same moment.
func (t *Table) of(entries []*Entry) *Table {
	b := builder{prev: &Table{}, groups: make(map[string]*Group), moved: true}
	other := &Table{generation: t.generation, complete: t.complete, policy: t.policy, superseded: t.superseded}
	other.entries = entries
	for _, e := range entries {
		b.regroup(nil, e)
	}
	b.arrange(other)
	return other
}

// Entry returns the entry of a group-version, nil if there is none.
func (t *Table) Entry(gv schema.GroupVersion) *Entry {
	g := t.Group(gv.Group)
	if g == nil {
		return nil
	}
	if g.versions != nil {
		return g.versions[gv.Version]
	}
	for _, e := range g.Entries {
		if e.GroupVersion.Version == gv.Version {
			return e
		}
	}
	return nil
}

// Group returns a group by name, nil if there is none.
func (t *Table) Group(name string) *Group {
	if i, ok := t.byGroup[name]; ok {
		return t.groups[i]
	}
	return nil
}

// Problems returns the faults and notes of the directory's files, ordered by file and line. The
// last valid objects of a faulty file are still in the table. The caller must not change the slice.
func (t *Table) Problems() []directory.Fault { return t.problems }

// NamespaceLabels reports whether the policy selects namespaces by their labels.
func (t *Table) NamespaceLabels() bool { return t.policy.labels != nil }

// Rules returns the rules of the policy. Nil means none.
func (t *Table) Rules() *policy.Gates { return t.policy.rules }

// named returns the entry of an APIService by its name, version.group, nil if there is none.
func (t *Table) named(name string) *Entry {
	version, group, _ := strings.Cut(name, ".")
	if e := t.Entry(schema.GroupVersion{Group: group, Version: version}); e != nil && e.Name == name {
		return e
	}
	return nil
}

// fewVersions is up to how many versions of a group are searched linearly: faster than a map. Most have one or two.
const fewVersions = 8

// regroup replaces old by now in their groups. A nil old means that now is new, the reverse: gone.
func (b *builder) regroup(old, now *Entry) {
	if old != nil {
		b.group(old)
		b.gone[old] = true // arrange drops all at once: one by one would cost their square
	}
	if now != nil {
		g := b.group(now)
		g.Entries = append(g.Entries, now)
	}
}

// group returns the group of an entry, as a copy that may be modified.
func (b *builder) group(of *Entry) *Group {
	name := of.GroupVersion.Group
	g := b.groups[name]
	if g == nil {
		g = &Group{Name: name}
		if old := b.prev.Group(name); old != nil {
			g.Entries = slices.Clone(old.Entries)
		}
		b.groups[name] = g
	}
	return g
}

// arrange sets what a table has beside its entries: their servers, and the groups of prev with the changes applied.
func (b *builder) arrange(t *Table) {
	t.servers = t.entries
	if slices.ContainsFunc(t.entries, func(e *Entry) bool { return len(e.Further) > 0 }) {
		t.servers = nil
		for _, e := range t.entries {
			t.servers = append(append(t.servers, e), e.Further...)
		}
	}
	t.groups = slices.Clone(b.prev.groups)
	var fresh []*Group
	for name, g := range b.groups {
		g.Entries = slices.DeleteFunc(g.Entries, func(e *Entry) bool { return b.gone[e] })
		slices.SortFunc(g.Entries, compareVersions)
		for _, e := range g.Entries {
			g.Priority = max(g.Priority, e.Object.Spec.GroupPriorityMinimum)
		}
		if len(g.Entries) > fewVersions {
			g.versions = make(map[string]*Entry, len(g.Entries))
			for _, e := range g.Entries {
				g.versions[e.GroupVersion.Version] = e
			}
		}
		at, known := t.byGroup[name]
		switch {
		case !b.moved:
			t.groups[at] = g
			continue
		case known:
			t.groups[at] = nil
		}
		if len(g.Entries) > 0 {
			fresh = append(fresh, g)
		}
	}
	if !b.moved {
		return
	}
	t.groups = merge(t.groups, fresh, (*Group).compare)
	t.byGroup = make(map[string]int, len(t.groups))
	for i, g := range t.groups {
		t.byGroup[g.Name] = i
	}
}

// merge merges fresh into kept, which is ordered, and drops its nils. One more of thousands costs a search and a copy.
func merge[T any](kept, fresh []*T, compare func(a, b *T) int) []*T {
	kept = slices.DeleteFunc(kept, func(e *T) bool { return e == nil })
	slices.SortFunc(fresh, compare)
	all := make([]*T, 0, len(kept)+len(fresh))
	for _, e := range fresh {
		at, _ := slices.BinarySearchFunc(kept, e, compare)
		all, kept = append(append(all, kept[:at]...), e), kept[at:]
	}
	return append(all, kept...)
}

// The two orders of Kubernetes break ties between groups differently: the legacy APIGroupList by the name of the
// APIService (version first: v1.zebra before v1beta1.ape), aggregated discovery by the name of the group. Each has one
// comparison here, and no other code compares: kube-aggregator has three sorts, one of which has compared an element
// with itself since 2017 (openapi/aggregator/priority.go:49).

// compareLegacy orders APIServices: groupPriorityMinimum descending, then name.
func compareLegacy(a, b *Entry) int {
	return cmp.Or(
		cmp.Compare(b.Object.Spec.GroupPriorityMinimum, a.Object.Spec.GroupPriorityMinimum),
		strings.Compare(a.Name, b.Name),
	)
}

// compare orders groups for aggregated discovery: highest priority first, then name.
func (g *Group) compare(other *Group) int {
	return cmp.Or(cmp.Compare(other.Priority, g.Priority), strings.Compare(g.Name, other.Name))
}

// compareVersions orders versions of a group: versionPriority descending, then as Kubernetes compares versions (v10
// before v2 before v1beta1 before names that are not Kubernetes versions), then name, so that the order is total.
func compareVersions(a, b *Entry) int {
	// First alone: what follows costs a microsecond of regular expressions, and Table.of sorts all groups.
	if c := cmp.Compare(b.Object.Spec.VersionPriority, a.Object.Spec.VersionPriority); c != 0 {
		return c
	}
	return cmp.Or(
		version.CompareKubeAwareVersionStrings(b.GroupVersion.Version, a.GroupVersion.Version),
		strings.Compare(a.Name, b.Name),
	)
}
