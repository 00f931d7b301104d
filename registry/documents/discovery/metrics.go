package discovery

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry/documents"
)

// metrics are the counters of the documents, and what Status says at the time of a scrape.
type metrics struct {
	*documents.Metrics
	aggregations prometheus.Counter
}

func newMetrics(status func() []Status, to prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		Metrics: documents.NewMetrics("discovery", func() []documents.Freshness {
			all := status()
			out := make([]documents.Freshness, len(all))
			for i := range all {
				out[i] = all[i].Freshness
			}
			return out
		}),
		aggregations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "aggregator_discovery_aggregation_count_total", Help: "Counter of number of times discovery was aggregated",
		}),
	}
	if to == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.aggregations, m.Metrics} {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of discovery: %w", err)
		}
	}
	return m, nil
}
