package openapi

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// sizes shows how large the merged documents are: what clients download, again whenever they change.
type sizes struct {
	o    *OpenAPI
	desc *prometheus.Desc
}

func registerSizes(o *OpenAPI, to prometheus.Registerer) error {
	if to == nil {
		return nil
	}
	err := to.Register(&sizes{o, prometheus.NewDesc("fairlead_openapi_document_bytes", "Size of the merged OpenAPI v2 document, once somebody has asked for it, and of the v3 index, uncompressed.", []string{"document"}, nil)})
	if err != nil {
		return fmt.Errorf("registering metrics of OpenAPI: %w", err)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (s *sizes) Describe(to chan<- *prometheus.Desc) { to <- s.desc }

// Collect implements prometheus.Collector.
func (s *sizes) Collect(to chan<- prometheus.Metric) {
	if b := s.o.built.Load(); b != nil && b.json != nil {
		to <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(b.json.size), "v2")
	}
	if v := s.o.view.Load(); v != nil && v.index != nil {
		to <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(v.index.size), "v3_index")
	}
}
