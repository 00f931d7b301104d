package discovery

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// sizes shows how large the merged documents are: what every client of the cluster downloads, again whenever they change.
type sizes struct {
	d    *Discovery
	desc *prometheus.Desc
}

func registerSizes(d *Discovery, to prometheus.Registerer) error {
	if to == nil {
		return nil
	}
	err := to.Register(&sizes{d, prometheus.NewDesc("fairlead_discovery_document_bytes", "Size of the merged discovery documents as JSON, uncompressed.", []string{"document"}, nil)})
	if err != nil {
		return fmt.Errorf("registering metrics of discovery: %w", err)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (s *sizes) Describe(to chan<- *prometheus.Desc) { to <- s.desc }

// Collect implements prometheus.Collector.
func (s *sizes) Collect(to chan<- prometheus.Metric) {
	docs := s.d.view.Load()
	if docs == nil {
		return
	}
	for _, is := range []struct {
		name string
		doc  *document
	}{{"apis", docs.legacy}, {"apis_aggregated", docs.groups}, {"api", docs.versions}, {"api_aggregated", docs.core}} {
		if is.doc != nil {
			to <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(len(is.doc.form(choice{}).plain)), is.name)
		}
	}
}
