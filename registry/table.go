package registry

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry/directory"
)

// Table is one immutable state of the set of APIServices. Its methods may be called by any
// goroutine at any time.
type Table struct {
	generation uint64
	complete   bool
	entries    []*Entry
	groups     []*Group
	byGroup    map[string]int // :: name → index in groups; shared by successive tables while it is the same
	problems   []directory.Fault
	options    *Options
	rebuildAt  time.Time // when Build must run without a change, because a Backend loses its Owner. Zero means never
	superseded chan struct{}
}

// Group is a group of the table with its versions in order of preference. An unchanged Group is the
// same pointer from table to table.
type Group struct {
	// Name is the API group; empty for core.
	Name string
	// Priority is the highest groupPriorityMinimum of its versions.
	Priority int32
	// Entries are its versions: versionPriority descending, then Kubernetes' version order.
	Entries []*Entry

	versions map[string]*Entry // for groups with many. Nil means linear search
}

// Generation counts the tables of this process, from 1. It only ever grows.
func (t *Table) Generation() uint64 { return t.generation }

// Complete reports whether every source had been read once when this table was built. Until then a
// path that matches nothing is unknown rather than absent and must be answered with 503, because
// garbage collection and namespace deletion take a 404 as "gone".
func (t *Table) Complete() bool { return t.complete }

// Superseded returns a channel that is closed once a newer table is stored.
func (t *Table) Superseded() <-chan struct{} { return t.superseded }

// Entries returns all entries in legacy order: groupPriorityMinimum descending, then name. The
// caller must not change the slice.
func (t *Table) Entries() []*Entry { return t.entries }

// Groups returns the groups in the order of aggregated discovery: priority descending, then name.
// The caller must not change the slice.
func (t *Table) Groups() []*Group { return t.groups }

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

// Problems returns the faults of the directory's files, ordered by file and line. The last valid
// objects of a faulty file are still in the table. The caller must not change the slice.
func (t *Table) Problems() []directory.Fault { return t.problems }

// named returns the entry of an APIService by its name, version.group, nil if there is none.
func (t *Table) named(name string) *Entry {
	version, group, _ := strings.Cut(name, ".")
	if e := t.Entry(schema.GroupVersion{Group: group, Version: version}); e != nil && e.Name == name {
		return e
	}
	return nil
}

// place returns the index of an APIService's entry.
func (t *Table) place(name string) (at int, known bool) {
	e := t.named(name)
	if e == nil {
		return 0, false
	}
	return slices.BinarySearchFunc(t.entries, e, compareLegacy)
}
