package discovery

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry/poll"
)

// metrics are the counters of the documents, and what Status says at the time of a scrape.
type metrics struct {
	status       func() []Status
	aggregations prometheus.Counter
	polls        *prometheus.CounterVec

	failing, age *prometheus.Desc
}

// resultOK is the result of a poll that was answered; the others are poll.Reasons.
const resultOK = "ok"

func newMetrics(status func() []Status, to prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		status: status,
		aggregations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "aggregator_discovery_aggregation_count_total", Help: "Counter of number of times discovery was aggregated",
		}),
		polls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_discovery_polls_total", Help: "Questions to backends and to the local apiserver about what they serve, by result.",
		}, []string{"result"}),
		failing: prometheus.NewDesc("fairlead_discovery_failing",
			"1 while what is listed of a remote APIService is not confirmed by its backend, by reason.", []string{"name", "reason"}, nil),
		age: prometheus.NewDesc("fairlead_discovery_age_seconds",
			"Time since a remote APIService's backend last confirmed what is listed of it. Absent: it never did.", []string{"name"}, nil),
	}
	for _, r := range []poll.Reason{resultOK, poll.ReasonUnreachable, poll.ReasonTimeout, poll.ReasonStatus, poll.ReasonTooLarge, poll.ReasonInvalid} {
		m.polls.WithLabelValues(string(r))
	}
	if to == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.aggregations, m.polls, m} {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of discovery: %w", err)
		}
	}
	return m, nil
}

// polled counts a question.
func (m *metrics) polled(err error) {
	result := resultOK
	if err != nil {
		result = string(poll.ReasonOf(err))
	}
	m.polls.WithLabelValues(result).Inc()
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.failing
	to <- m.age
}

// Collect implements prometheus.Collector. Its series come and go with the APIServices.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	now := time.Now()
	for _, s := range m.status() {
		if s.Reason != "" {
			to <- prometheus.MustNewConstMetric(m.failing, prometheus.GaugeValue, 1, s.Name, s.Reason)
		}
		if !s.Confirmed.IsZero() {
			to <- prometheus.MustNewConstMetric(m.age, prometheus.GaugeValue, now.Sub(s.Confirmed).Seconds(), s.Name)
		}
	}
}
