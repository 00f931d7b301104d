// Package metric has the helpers for metrics that all packages share: registering, and counters
// that start at 0.
//
// It is used while components are constructed. It defines no metric and holds no state.
package metric

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers the metrics of a component. A nil Registerer registers nothing.
func Register(to prometheus.Registerer, of string, all ...prometheus.Collector) error {
	if to == nil {
		return nil
	}
	for _, c := range all {
		if err := to.Register(c); err != nil {
			return fmt.Errorf("registering metrics of %s: %w", of, err)
		}
	}
	return nil
}

// Gauges is a collector of gauges made at each scrape, so that they disappear with their objects.
type Gauges struct {
	// All describes the gauges.
	All []*prometheus.Desc
	// Make calls gauge for each series.
	Make func(gauge func(d *prometheus.Desc, v float64, labels ...string))
}

// Describe implements prometheus.Collector.
func (g Gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range g.All {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g Gauges) Collect(ch chan<- prometheus.Metric) {
	g.Make(func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	})
}

// Number returns the value of a gauge that says yes or no: 1 or 0.
func Number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Counter makes a counter with one label of few values. All series start at 0, because rate() does
// not see the first step of a series that begins at 1.
func Counter(name, help, label string, values ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	for _, v := range values {
		c.WithLabelValues(v)
	}
	return c
}
