package registry

import "slices"

// fewVersions is how many versions of a group are looked for one by one, which for these few is faster than a map. Most groups have one or two.
const fewVersions = 8

// regroup notes that one entry has become another, in the groups that they belong to. Old nil: it is new. Now nil: it is gone.
func (b *builder) regroup(old, now *Entry) {
	if old != nil {
		g := b.group(old)
		g.Entries = slices.DeleteFunc(g.Entries, func(e *Entry) bool { return e == old })
	}
	if now != nil {
		g := b.group(now)
		g.Entries = append(g.Entries, now)
	}
}

// group returns the group of an entry, to be changed.
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

// arrange gives a table its groups: those of prev, but for what has changed.
func (b *builder) arrange(t *Table) {
	t.groups = slices.Clone(b.prev.groups)
	var fresh []*Group
	order := make(versionOrder)
	for name, g := range b.groups {
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

// merge puts fresh elements between the kept ones, which are in order already and nil where there is none any more: one among thousands costs one pass.
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
