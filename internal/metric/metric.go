// Package metric has the helpers for metrics that all packages share: registering, and counters that start at 0.
//
// It is used while components are constructed. It defines no metric and holds no state.
package metric

import (
	"cmp"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers the metrics of a component. A nil Registerer registers nothing. It panics if a
// name is taken: only a programmer can cause that, and every start would show it.
func Register(to prometheus.Registerer, all ...prometheus.Collector) {
	if to != nil {
		to.MustRegister(all...)
	}
}

// Sinks are where a component reports. A Config embeds them.
type Sinks struct {
	Logger  *slog.Logger          // nil discards
	Metrics prometheus.Registerer // nil means that the metrics are unregistered
}

// Log returns the logger, never nil.
func (s Sinks) Log() *slog.Logger { return cmp.Or(s.Logger, slog.New(slog.DiscardHandler)) }

// Gauges is a collector of series made at each scrape, so that they disappear with their objects.
type Gauges struct {
	Type prometheus.ValueType // of the series. Zero means gauges
	All  []*prometheus.Desc   // describes the series
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
		ch <- prometheus.MustNewConstMetric(d, cmp.Or(g.Type, prometheus.GaugeValue), v, labels...)
	})
}

// Number returns the value of a gauge that says yes or no: 1 or 0.
func Number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Count makes a counter.
func Count(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// CountBy makes a counter with labels. A series begins with its first event.
func CountBy(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Counter makes a counter with one label of few values. All series start at 0, because rate() does
// not see the first step of a series that begins at 1.
func Counter(name, help, label string, values ...string) *prometheus.CounterVec {
	c := CountBy(name, help, label)
	for _, v := range values {
		c.WithLabelValues(v)
	}
	return c
}
