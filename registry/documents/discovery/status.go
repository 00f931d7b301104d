package discovery

import (
	"cmp"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// Status says how current one remote APIService's part of the documents is.
type Status struct {
	documents.Freshness
	// Stale says that the resources are listed as Stale, so that clients ignore them.
	Stale bool `json:"stale"`
	// Resources is how many resources are listed.
	Resources int `json:"resources"`
}

// Status returns the status of every remote APIService, sorted by name.
func (d *Discovery) Status() []Status {
	docs := d.view.Load()
	if docs == nil {
		return nil
	}
	var out []Status
	t := d.cfg.Table()
	for _, listed := range docs.parts {
		gv := schema.GroupVersion{Group: listed.group, Version: listed.doc.Version}
		e := t.Entry(gv)
		if listed.of == nil || e == nil {
			continue
		}
		v := listed.of.Load().version(gv) // a confirmation does not render the document again
		out = append(out, Status{
			Freshness: documents.Freshness{Confirmed: v.confirmed}.Of(e, v.err),
			Stale:     listed.doc.Freshness == apidiscoveryv2.DiscoveryFreshnessStale, Resources: len(listed.doc.Resources),
		})
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return out
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
			show(is.name, len(is.doc.form(choice{}).body))
		}
	}
}
