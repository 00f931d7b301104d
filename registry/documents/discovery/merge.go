package discovery

import (
	"cmp"
	"slices"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/builtin"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// merge is the input of the aggregated document.
type merge struct {
	table   *registry.Table
	local   versions
	sources func(*registry.Backend) *source
	// departed have left the table; true: they were remote. Local apiservers' documents list them for a moment or, of
	// one that is down, until it is back. Those that are lost are only in documents of such.
	departed, lost map[schema.GroupVersion]bool
	silent         bool // a local apiserver has neither answered nor refused yet
	staleAfter     time.Duration
	now            time.Time
	becomesStale   time.Time // when the first entry will become Stale by age alone. Zero means never
}

// groups returns all groups but core, which is below /api, in the order of the document.
func (m *merge) groups() []*registry.Group {
	groups := m.table.Groups()
	if strays := m.strays(); len(strays) > 0 {
		groups = m.table.GroupsWith(strays)
	}
	return slices.DeleteFunc(slices.Clone(groups), func(g *registry.Group) bool { return g.Name == "" })
}

// part is a group-version of the aggregated document.
type part struct {
	group string
	doc   *apidiscoveryv2.APIVersionDiscovery
	from  []served // what doc is the union of
}

// served is what one server has of a group-version.
type served struct {
	name string  // of the server's entry
	of   *source // nil means the local apiserver
	doc  *apidiscoveryv2.APIVersionDiscovery

	entry     *registry.Entry // nil means the local apiserver's
	conflicts []string        // its resources of which another server's are listed that differ, ten at most
}

func (s served) current() bool { return s.doc.Freshness == apidiscoveryv2.DiscoveryFreshnessCurrent }

// same reports whether two parts have the same content, by identity: a response is never changed, only replaced.
func (p part) same(o part) bool {
	sameOf := func(x, y served) bool {
		a, b := x.doc, y.doc
		return x.name == y.name && (a == b || a.Version == b.Version && a.Freshness == b.Freshness &&
			len(a.Resources) == len(b.Resources) && (len(a.Resources) == 0 || &a.Resources[0] == &b.Resources[0]))
	}
	return p.group == o.group && p.doc.Freshness == o.doc.Freshness && slices.EqualFunc(p.from, o.from, sameOf)
}

func (m *merge) parts() []part {
	var out []part
	for _, g := range m.groups() {
		for _, e := range g.Entries {
			if from := m.from(e); from[0].doc != nil && e.Hidden == "" {
				out = append(out, part{group: g.Name, doc: united(from), from: from})
			}
		}
	}
	return out
}

// from returns what each server of a group-version has, in order of precedence. The local apiserver's may be nil.
func (m *merge) from(e *registry.Entry) (out []served) {
	if e.Local() {
		return []served{{name: e.Name, doc: m.local[e.GroupVersion]}}
	}
	for _, s := range e.Servers() {
		of := m.sources(s.Backend)
		out = append(out, served{name: s.Name, of: of, doc: m.version(s, of.Load()), entry: s})
	}
	return out
}

// united returns the union of what several servers have, and notes conflicts. Of two resources of one name the first is
// listed, and unless they differ with the subresources of both: metrics are subresources of what they measure. It is
// Stale if one part is, as that of a server that has not answered yet: else a namespace would be deleted before what
// that server has in it. A standby and its server have the same, so one of them is enough.
func united(from []served) *apidiscoveryv2.APIVersionDiscovery {
	if len(from) == 1 {
		return from[0].doc
	}
	out, by, subs := *from[0].doc, make(map[string]int), sets.New[[2]string]() // by :: resource → index in Resources
	out.Resources, out.Freshness = nil, apidiscoveryv2.DiscoveryFreshnessCurrent
	const maxConflicts = 10 // bounds what status and log show of a server
	own := false            // or a standby
	for i := range from {
		s := &from[i]
		conditional := s.entry != nil && s.entry.Rule != nil && s.entry.Rule.When != nil
		if own = own || s.current() && !conditional; conditional && !s.current() &&
			s.entry.Verdict.Reason != registry.ReasonServiceNotFound {
			out.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
		}
		for _, r := range s.doc.Resources {
			at, known := by[r.Resource]
			if !known {
				at, r.Subresources = len(out.Resources), slices.Clip(r.Subresources) // others' may follow
				by[r.Resource], out.Resources = at, append(out.Resources, r)
			} else if differ(&out.Resources[at], &r) {
				if len(s.conflicts) < maxConflicts {
					s.conflicts = append(s.conflicts, printable.Cut(r.Resource, validation.DNS1123LabelMaxLength))
				}
				continue
			}
			for _, sub := range r.Subresources {
				if n := subs.Len(); subs.Insert([2]string{r.Resource, sub.Subresource}).Len() > n && known {
					out.Resources[at].Subresources = append(out.Resources[at].Subresources, sub)
				}
			}
		}
	}
	if !own {
		out.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
	}
	return &out
}

func differ(a, b *apidiscoveryv2.APIResourceDiscovery) bool {
	none := metav1.GroupVersionKind{}
	return ptr.Deref(a.ResponseKind, none).Kind != ptr.Deref(b.ResponseKind, none).Kind ||
		a.Scope != b.Scope || !slices.Equal(a.Verbs, b.Verbs) && !sets.New(a.Verbs...).Equal(sets.New(b.Verbs...))
}

func listOfParts(parts []part) *apidiscoveryv2.APIGroupDiscoveryList {
	list := &apidiscoveryv2.APIGroupDiscoveryList{Items: []apidiscoveryv2.APIGroupDiscovery{}}
	for _, p := range parts {
		if n := len(list.Items); n == 0 || list.Items[n-1].Name != p.group {
			meta := metav1.ObjectMeta{Name: p.group}
			list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: meta})
		}
		g := &list.Items[len(list.Items)-1]
		g.Versions = append(g.Versions, *p.doc)
	}
	return list
}

// version returns what a remote entry's backend has, whose state is s.
func (m *merge) version(e *registry.Entry, s *state) *apidiscoveryv2.APIVersionDiscovery {
	v := s.versions[e.GroupVersion]
	confirmed := v.err == nil && documents.Askable(e) // still
	if v.doc != nil && (m.staleAfter <= 0 || confirmed || !m.goesStale(v.confirmed)) {
		return v.doc
	}
	stale := *cmp.Or(v.doc, &apidiscoveryv2.APIVersionDiscovery{Version: e.GroupVersion.Version})
	stale.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
	return &stale
}

// goesStale reports whether what was last confirmed at that time is Stale, and else notes when it will be.
func (m *merge) goesStale(confirmed time.Time) bool {
	at := confirmed.Add(m.staleAfter)
	if !at.After(m.now) {
		return true
	}
	m.becomesStale = latest.Earlier(m.becomesStale, at)
	return false
}

// strays returns entries for group-versions of the local apiserver that the table does not have.
func (m *merge) strays() []*registry.Entry {
	var out []*registry.Entry
	for gv := range m.local {
		remote, left := m.departed[gv]
		if gv.Group == "" || left && (remote || m.lost[gv]) || m.table.Entry(gv) != nil {
			continue
		}
		group, version, _ := builtin.Priorities(gv)
		spec := apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group, VersionPriority: version,
		}
		out = append(out, &registry.Entry{
			Name: gv.Version + "." + gv.Group, GroupVersion: gv, Object: &apiregistrationv1.APIService{Spec: spec},
		})
	}
	return out
}

// groupList returns the legacy list: every APIService, available or not, groups in the order of their best one.
func groupList(t *registry.Table) *metav1.APIGroupList {
	own := metav1.GroupVersionForDiscovery{GroupVersion: apiregistrationv1.GroupName + "/v1", Version: "v1"}
	list := &metav1.APIGroupList{Groups: []metav1.APIGroup{{
		Name: apiregistrationv1.GroupName, Versions: []metav1.GroupVersionForDiscovery{own}, PreferredVersion: own,
	}}}
	listed := map[string]bool{"": true, apiregistrationv1.GroupName: true}
	for _, e := range t.Entries() {
		if name := e.GroupVersion.Group; !listed[name] {
			listed[name] = true
			if g := legacyGroup(t.Group(name)); g != nil {
				list.Groups = append(list.Groups, *g)
			}
		}
	}
	return list
}

// legacyGroup returns a group, nil if all is hidden. It prefers the first version that is not, available or not.
func legacyGroup(g *registry.Group) *metav1.APIGroup {
	out := &metav1.APIGroup{Name: g.Name, Versions: make([]metav1.GroupVersionForDiscovery, 0, len(g.Entries))}
	for _, e := range g.Entries {
		if e.Hidden == "" {
			v := metav1.GroupVersionForDiscovery{GroupVersion: e.GroupVersion.String(), Version: e.GroupVersion.Version}
			out.Versions = append(out.Versions, v)
		}
	}
	if len(out.Versions) == 0 {
		return nil
	}
	out.PreferredVersion = out.Versions[0]
	return out
}
