package registry

import "slices"

// fewVersions is up to how many versions of a group are searched linearly, which is faster than a
// map. Most groups have one or two.
const fewVersions = 8

// regroup replaces old by now in the groups they belong to. A nil old means that now is new, a nil
// now that old is gone.
func (b *builder) regroup(old, now *Entry) {
	if old != nil {
		b.group(old)
		if b.gone == nil {
			b.gone = make(map[*Entry]bool)
		}
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
		if b.groups == nil {
			b.groups = make(map[string]*Group)
		}
		b.groups[name] = g
	}
	return g
}

// arrange sets the groups of a table: those of prev with the changes applied.
func (b *builder) arrange(t *Table) {
	t.groups = slices.Clone(b.prev.groups)
	var fresh []*Group
	order := make(versionOrder)
	for name, g := range b.groups {
		g.Entries = slices.DeleteFunc(g.Entries, func(e *Entry) bool { return b.gone[e] })
		slices.SortFunc(g.Entries, order.compare)
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
	t.groups = merge(t.groups, fresh, (*Group).Compare)
	t.byGroup = make(map[string]int, len(t.groups))
	for i, g := range t.groups {
		t.byGroup[g.Name] = i
	}
}

// merge merges fresh elements into the kept ones, which are ordered. Nil elements of kept are
// dropped. It is one pass, so adding one element to thousands is cheap.
func merge[T any](kept, fresh []*T, compare func(a, b *T) int) []*T {
	slices.SortFunc(fresh, compare)
	out := make([]*T, 0, len(kept)+len(fresh))
	for _, k := range kept {
		if k == nil {
			continue
		}
		for len(fresh) > 0 && compare(fresh[0], k) < 0 {
			out, fresh = append(out, fresh[0]), fresh[1:]
		}
		out = append(out, k)
	}
	return append(out, fresh...)
}
