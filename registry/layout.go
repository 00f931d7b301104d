package registry

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// layout is the shape of a table: which entry has which place, without the entries themselves. Most changes (an endpoint, a verdict) leave the
// shape alone, so it is shared from table to table and only a new or deleted APIService, or a changed priority, pays for sorting.
type layout struct {
	byGV    map[schema.GroupVersion]int // place in entries
	byGroup map[string]int              // place in groups
	groups  []extent
	members []int // places in entries, group by group, in order of versions
}

// extent is one group: a run of members.
type extent struct {
	name        string
	priority    int32
	first, last int
}

// newLayout derives the shape from entries in legacy order.
func newLayout(entries []*Entry) layout {
	l := layout{byGV: make(map[schema.GroupVersion]int, len(entries)), members: make([]int, 0, len(entries))}
	next := make([]int, len(entries)) // :: place → the next place of the same group + 1, 0 at the end
	tail := make([]int, 0, len(entries))
	l.byGroup = make(map[string]int, len(entries))
	for i, e := range entries {
		if _, taken := l.byGV[e.GroupVersion]; !taken {
			l.byGV[e.GroupVersion] = i
		}
		name := e.GroupVersion.Group
		g, seen := l.byGroup[name]
		if !seen {
			l.byGroup[name] = len(l.groups)
			// Entries come in descending priority, so the first of a group has its highest.
			l.groups = append(l.groups, extent{name: name, priority: e.Object.Spec.GroupPriorityMinimum, first: i})
			tail = append(tail, i)
			continue
		}
		next[tail[g]] = i + 1
		tail[g] = i
	}
	slices.SortFunc(l.groups, compareGroups)
	order := make(versionOrder)
	for i := range l.groups {
		g := &l.groups[i]
		l.byGroup[g.name] = i
		start := len(l.members)
		for p := g.first + 1; p != 0; p = next[p-1] {
			l.members = append(l.members, p-1)
		}
		g.first, g.last = start, len(l.members)
		if versions := l.members[g.first:g.last]; len(versions) > 1 {
			slices.SortFunc(versions, func(x, y int) int { return order.compare(entries[x], entries[y]) })
		}
	}
	return l
}

// fill gives the groups their entries.
func (l *layout) fill(entries []*Entry) []Group {
	flat := make([]*Entry, len(l.members))
	for i, place := range l.members {
		flat[i] = entries[place]
	}
	groups := make([]Group, len(l.groups))
	for i, x := range l.groups {
		// The capacity ends with the group, so that a careless append by a reader cannot reach the next one.
		groups[i] = Group{Name: x.name, Priority: x.priority, Entries: flat[x.first:x.last:x.last]}
	}
	return groups
}
