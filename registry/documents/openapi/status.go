package openapi

import (
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// Status is how current one remote APIService's part of the documents is.
type Status struct {
	documents.Freshness
	// V2 and V3 say whether it has a part in the documents.
	V2 bool `json:"v2"`
	V3 bool `json:"v3"`
}

// row is one remote APIService.
type row struct {
	entry  *registry.Entry
	source *source
}

// Status tells of every remote APIService, by name.
func (o *OpenAPI) Status() []Status {
	v := o.view.Load()
	if v == nil {
		return nil
	}
	out := make([]Status, len(v.rows))
	for i, r := range v.rows {
		st := r.source.Load()
		out[i] = Status{Freshness: documents.Freshness{Confirmed: st.confirmed}.Of(r.entry, st.err), V2: st.spec != nil, V3: st.documents[r.entry.GroupVersion] != nil}
	}
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
	if v := o.view.Load(); v != nil && v.index != nil {
		show("v3_index", v.index.size)
	}
}
