package discovery

import (
	"cmp"
	"maps"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// versions are group-versions with their resources. The core group has no name.
type versions map[schema.GroupVersion]*apidiscoveryv2.APIVersionDiscovery

// together returns what the local apiservers serve together, in the words of the newest one, and
// tells which of them serve what. They are in an order that does not depend on their names, so that
// all replicas make the same documents. Nil means that none is known.
func (d *Discovery) together(m *merge) *localState {
	if d.cfg.FetchLocal == nil {
		return &localState{groups: d.own}
	}
	var all []*localState
	for _, s := range d.sources.Locals {
		if s.complete() {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *localState) int {
		return cmp.Or(documents.Newer(a.release, b.release), cmp.Compare(a.groupsTag, b.groupsTag), cmp.Compare(a.coreTag, b.coreTag), cmp.Compare(a.address(), b.address()))
	})
	if len(all) == 0 {
		return nil
	}
	out, only := *all[0], (map[schema.GroupVersionResource][]string)(nil)
	if slices.ContainsFunc(all, func(s *localState) bool { return s.groupsTag != out.groupsTag || s.coreTag != out.coreTag }) {
		groups := make(versions)
		for _, s := range all {
			groups.add(s, m)
		}
		only = lacking(all)
		out.core = groups.core(out.core)
		out.groups = groups
	}
	if d.cfg.Only != nil {
		var known []string
		for _, s := range all {
			known = append(known, s.server)
		}
		d.cfg.Only("discovery", known, only) // first: what is listed is served
	}
	return &out
}

// Release returns the release of a local apiserver. Empty means that it is not known.
func (d *Discovery) Release(server string) string {
	for name, s := range d.sources.Locals {
		if name == server && s != nil {
			return s.release
		}
	}
	return ""
}

// address is what tells servers with equal documents apart.
func (s *localState) address() string {
	for _, a := range s.versions.ServerAddressByClientCIDRs {
		return a.ServerAddress
	}
	return ""
}

// each yields all group-versions of a server, core included.
func (s *localState) each(yield func(schema.GroupVersion, *apidiscoveryv2.APIVersionDiscovery) bool) {
	for gv, doc := range s.groups {
		if !yield(gv, doc) {
			return
		}
	}
	for i := range s.core.Items {
		for j := range s.core.Items[i].Versions {
			if v := &s.core.Items[i].Versions[j]; !yield(schema.GroupVersion{Version: v.Version}, v) {
				return
			}
		}
	}
}

// add adds what a server has and those before it lack. What only servers serve that have been down
// for too long is Stale.
func (all versions) add(s *localState, m *merge) {
	for gv, doc := range s.each {
		known := all[gv]
		if known == nil {
			all[gv] = doc
			if s.failed && m.staleAfter > 0 && m.goesStale(s.confirmed) {
				stale := *doc
				stale.Freshness = apidiscoveryv2.DiscoveryFreshnessStale
				all[gv] = &stale
			}
			continue
		}
		more := slices.DeleteFunc(slices.Clone(doc.Resources), func(r apidiscoveryv2.APIResourceDiscovery) bool {
			return slices.ContainsFunc(known.Resources, func(k apidiscoveryv2.APIResourceDiscovery) bool { return k.Resource == r.Resource })
		})
		if len(more) > 0 {
			both := *known
			both.Resources = append(slices.Clip(known.Resources), more...)
			all[gv] = &both
		}
	}
}

// core takes the core group out, in the form of /api.
func (all versions) core(like *apidiscoveryv2.APIGroupDiscoveryList) *apidiscoveryv2.APIGroupDiscoveryList {
	out := *like
	out.Items = slices.Clone(like.Items)
	for i := range out.Items {
		out.Items[i].Versions = slices.Clone(out.Items[i].Versions)
		for j := range out.Items[i].Versions {
			gv := schema.GroupVersion{Version: out.Items[i].Versions[j].Version}
			out.Items[i].Versions[j] = *all[gv]
			delete(all, gv)
		}
	}
	return &out
}

// lacking returns what not all servers serve, and who does.
func lacking(all []*localState) map[schema.GroupVersionResource][]string {
	by := make(map[schema.GroupVersionResource][]string)
	for _, s := range all {
		for gv, doc := range s.each {
			keys := []schema.GroupVersionResource{gv.WithResource(""), {Resource: "/apis/" + gv.String()}}
			for _, r := range doc.Resources {
				keys = append(keys, gv.WithResource(r.Resource))
				for _, sub := range r.Subresources {
					keys = append(keys, gv.WithResource(r.Resource+"/"+sub.Subresource))
				}
			}
			for _, k := range keys {
				by[k] = append(by[k], s.server)
			}
		}
	}
	maps.DeleteFunc(by, func(_ schema.GroupVersionResource, of []string) bool { return len(of) == len(all) })
	return by
}
