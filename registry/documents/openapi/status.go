package openapi

import (
	"slices"
	"strings"

	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// Status says how current one remote APIService's part of the documents is.
type Status struct {
	documents.Freshness
	// V2 and V3 say whether the APIService has a part in the documents.
	V2 bool `json:"v2"`
	V3 bool `json:"v3"`
	// Foreign are group-versions of other servers that are in the index of this one, ten at most.
	Foreign []string `json:"foreign,omitempty"`
}

// Status returns the status of every remote APIService, sorted by name.
func (o *OpenAPI) Status() []Status {
	var out []Status
	for e, s := range o.remotes(o.cfg.Table()) {
		st := s.Load()
		v := st.versions[e.GroupVersion]
		out = append(out, Status{Freshness: documents.Freshness{Confirmed: st.confirmed}.Of(e, st.err), V2: v.v2 != nil, V3: v.v3 != nil, Foreign: st.claims.foreign})
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (o *OpenAPI) showStatus(show func(documents.Freshness)) {
	for _, s := range o.Status() {
		show(s.Freshness)
	}
}

func (o *OpenAPI) showSizes(show func(document string, bytes int)) {
	if b := o.built.Load(); b != nil && b.json != nil {
		show("v2", b.json.size)
	}
	if v := o.view.Load(); v != nil {
		if index := v.index(); index != nil {
			show("v3_index", index.size)
		}
	}
}
