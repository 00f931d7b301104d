package openapi

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

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
		st := r.source.state.Load()
		out[i] = Status{Freshness: documents.Freshness{Confirmed: st.confirmed}.Of(r.entry, st.err), V2: st.spec != nil, V3: st.documents[r.entry.GroupVersion] != nil}
	}
	return out
}

// metrics are counters of the work, and what Status says at the time of a scrape.
type metrics struct {
	*documents.Metrics
	build prometheus.Histogram
}

func newMetrics(status func() []Status, to prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		Metrics: documents.NewMetrics("OpenAPI", func() []documents.Freshness {
			all := status()
			out := make([]documents.Freshness, len(all))
			for i := range all {
				out[i] = all[i].Freshness
			}
			return out
		}),
		build: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_openapi_build_seconds", Help: "Time to merge the OpenAPI v2 document.",
			// From 50 ms, which a plain cluster takes, to 25 s, at which clients give up.
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 10),
		}),
	}
	if to == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.build, m.Metrics} {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of OpenAPI: %w", err)
		}
	}
	return m, nil
}
