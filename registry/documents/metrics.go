package documents

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// Freshness says how current one remote APIService's part of a merged document is.
type Freshness struct {
	// Name is the APIService's.
	Name string `json:"-"`
	// Reason is why the backend's last response could not be used: a Reason, "unavailable" when its
	// verdict says so, or "pending" before the first request. Empty means that it could.
	Reason string `json:"reason,omitempty"`
	// Message is the cause, for the operator: it may contain addresses.
	Message string `json:"message,omitempty"`
	// Confirmed is when the backend last gave a complete response. Zero means never.
	Confirmed time.Time `json:"confirmed,omitzero"`
}

// Of returns f with the name of e and why the last request for it failed, if it did.
func (f Freshness) Of(e *registry.Entry, err error) Freshness {
	f.Name = e.Name
	switch {
	case e.Verdict.Status == corev1.ConditionFalse:
		f.Reason, f.Message = "unavailable", e.Verdict.Reason
	case err != nil:
		f.Reason, f.Message = string(reasonOf(err)), err.Error()
	case f.Confirmed.IsZero():
		f.Reason = "pending"
	}
	return f
}

// metrics counts requests, and shows at each scrape how current and how large a merged document is:
// fairlead_<document>_polls_total, _failing, _age_seconds and _document_bytes.
type metrics struct {
	polls  *prometheus.CounterVec
	status func(show func(Freshness))
	sizes  func(show func(document string, bytes int))

	failing, age, bytes *prometheus.Desc
}

// resultOK is the result of a successful request. The other results are Reasons.
const resultOK = "ok"

func newMetrics(document, sizesHelp string, status func(func(Freshness)), sizes func(func(string, int))) *metrics {
	name := "fairlead_" + strings.ToLower(document)
	m := &metrics{
		status: status, sizes: sizes,
		polls: metric.Counter(name+"_polls_total", fmt.Sprintf("Requests to backends and to the local apiserver for %s, by result.", document), "result",
			resultOK, string(ReasonUnreachable), string(ReasonTimeout), string(ReasonStatus), string(ReasonTooLarge), string(ReasonInvalid)),
		failing: prometheus.NewDesc(name+"_failing",
			fmt.Sprintf("1 while a remote APIService's part of %s is not confirmed by its backend, by reason.", document), []string{"name", "reason"}, nil),
		age: prometheus.NewDesc(name+"_age_seconds",
			fmt.Sprintf("Time since a remote APIService's backend last confirmed its part of %s. Absent if it never did.", document), []string{"name"}, nil),
		bytes: prometheus.NewDesc(name+"_document_bytes", sizesHelp, []string{"document"}, nil),
	}
	return m
}

// polled counts a request by its result.
func (m *metrics) polled(err error) {
	m.polls.WithLabelValues(string(cmp.Or(reasonOf(err), resultOK))).Inc()
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	m.polls.Describe(to)
	for _, d := range []*prometheus.Desc{m.failing, m.age, m.bytes} {
		to <- d
	}
}

// Collect implements prometheus.Collector. The series of APIServices come and go with them.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	m.polls.Collect(to)
	now := time.Now()
	m.status(func(f Freshness) {
		if f.Reason != "" {
			to <- prometheus.MustNewConstMetric(m.failing, prometheus.GaugeValue, 1, f.Name, f.Reason)
		}
		if !f.Confirmed.IsZero() {
			to <- prometheus.MustNewConstMetric(m.age, prometheus.GaugeValue, now.Sub(f.Confirmed).Seconds(), f.Name)
		}
	})
	m.sizes(func(document string, bytes int) {
		to <- prometheus.MustNewConstMetric(m.bytes, prometheus.GaugeValue, float64(bytes), document)
	})
}
