package documents

import (
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Freshness is how current one remote APIService's part of a merged document is.
type Freshness struct {
	// Name is the APIService's.
	Name string `json:"-"`
	// Reason is why the backend's last answer could not be used: a Reason, "unavailable" when its verdict says so, or "pending" when it has not been asked yet. Empty: it could.
	Reason string `json:"reason,omitempty"`
	// Message is the cause, for the operator: it may hold addresses.
	Message string `json:"message,omitempty"`
	// Confirmed is when the backend last answered in full. Zero: never.
	Confirmed time.Time `json:"confirmed,omitzero"`
}

// Of says whose part it is, and why the last question about it failed, if it did.
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

// Metrics counts questions, and says at each scrape how current a merged document is: fairlead_<document>_polls_total, _failing and _age_seconds.
type Metrics struct {
	status func() []Freshness
	polls  *prometheus.CounterVec

	failing, age *prometheus.Desc
}

// resultOK is the result of a question that was answered; the others are Reasons.
const resultOK = "ok"

// NewMetrics makes the metrics of a document. It is for the caller to register.
func NewMetrics(document string, status func() []Freshness) *Metrics {
	name := "fairlead_" + strings.ToLower(document)
	m := &Metrics{
		status: status,
		polls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name + "_polls_total", Help: fmt.Sprintf("Questions to backends and to the local apiserver for %s, by result.", document),
		}, []string{"result"}),
		failing: prometheus.NewDesc(name+"_failing",
			fmt.Sprintf("1 while a remote APIService's part of %s is not confirmed by its backend, by reason.", document), []string{"name", "reason"}, nil),
		age: prometheus.NewDesc(name+"_age_seconds",
			fmt.Sprintf("Time since a remote APIService's backend last confirmed its part of %s. Absent: it never did.", document), []string{"name"}, nil),
	}
	for _, r := range []Reason{resultOK, ReasonUnreachable, ReasonTimeout, ReasonStatus, ReasonTooLarge, ReasonInvalid} {
		m.polls.WithLabelValues(string(r))
	}
	return m
}

// Polled counts a question by how it ended.
func (m *Metrics) Polled(err error) {
	result := resultOK
	if err != nil {
		result = string(reasonOf(err))
	}
	m.polls.WithLabelValues(result).Inc()
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	m.polls.Describe(to)
	to <- m.failing
	to <- m.age
}

// Collect implements prometheus.Collector. The series of APIServices come and go with them.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.polls.Collect(to)
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
