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
