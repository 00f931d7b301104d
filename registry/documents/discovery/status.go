package discovery

import (
	"cmp"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// Status is how current one remote APIService's part of the documents is.
type Status struct {
	documents.Freshness
	// Stale says that clients are told to ignore what is listed.
	Stale bool `json:"stale"`
	// Resources is how many resources are listed.
	Resources int `json:"resources"`
}

// row is one remote APIService as it was rendered, and where to find what its backend has said since: being confirmed again is no reason to render anew.
type row struct {
	entry     *registry.Entry
	source    *source
	stale     bool
	resources int
}

// Status tells of every remote APIService, by name.
func (d *Discovery) Status() []Status {
	docs := d.view.Load()
	if docs == nil {
		return nil
	}
	out := make([]Status, len(docs.rows))
	for i := range docs.rows {
		out[i] = docs.rows[i].status()
	}
	return out
}

// rows are the remote APIServices below /apis, by name.
func (m *merge) rows() []row {
	var out []row
	for _, e := range m.table.Entries() {
		if e.Local() || e.GroupVersion.Group == "" {
			continue
		}
		listed := m.version(e)
		out = append(out, row{
			entry: e, source: m.sources[e.Name], stale: listed.Freshness == apidiscoveryv2.DiscoveryFreshnessStale, resources: len(listed.Resources),
		})
	}
	slices.SortFunc(out, func(a, b row) int { return cmp.Compare(a.entry.Name, b.entry.Name) })
	return out
}

func (r *row) status() Status {
	var v version
	if r.source != nil {
		v = r.source.Load().version(r.entry.GroupVersion)
	}
	return Status{Freshness: documents.Freshness{Confirmed: v.confirmed}.Of(r.entry, v.err), Stale: r.stale, Resources: r.resources}
}

func (d *Discovery) showStatus(show func(documents.Freshness)) {
	for _, s := range d.Status() {
		show(s.Freshness)
	}
}

func (d *Discovery) showSizes(show func(document string, bytes int)) {
	docs := d.view.Load()
	if docs == nil {
		return
	}
	for _, is := range []struct {
		name string
		doc  *document
	}{{"apis", docs.legacy}, {"apis_aggregated", docs.groups}, {"api", docs.versions}, {"api_aggregated", docs.core}} {
		if is.doc != nil {
			show(is.name, len(is.doc.form(choice{}).plain))
		}
	}
}
