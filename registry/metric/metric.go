// Package metric is what all packages do alike with their metrics: registering them, and having counters begin at 0.
//
// It is used while components are made. It knows no metric and holds no state.
package metric

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers the metrics of somebody. A nil Registerer registers nothing.
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

// Counter counts by one label of few values. All its series exist at 0 from the start, because rate() cannot see the first step of a series that begins at 1.
func Counter(name, help, label string, values ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	for _, v := range values {
		c.WithLabelValues(v)
	}
	return c
}
