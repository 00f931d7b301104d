package openapi

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/poll"
)

// Status is how current one remote APIService's part of the documents is.
type Status struct {
	// Name is the APIService's.
	Name string `json:"-"`
	// V2 and V3 say whether it has a part in the documents.
	V2 bool `json:"v2"`
	V3 bool `json:"v3"`
	// Reason is why the backend's last answer could not be used: a poll.Reason, "unavailable" when its verdict says so, or "pending" when it has not been asked yet. Empty: it could.
	Reason string `json:"reason,omitempty"`
	// Message is the cause, for the operator: it may hold addresses.
	Message string `json:"message,omitempty"`
	// Confirmed is when the backend last answered in full. Zero: never.
	Confirmed time.Time `json:"confirmed,omitzero"`
}

// row is one remote APIService.
type row struct {
	entry  *registry.Entry
	source *source
}

// Status tells of every remote APIService, by name.
func (o *OpenAPI) Status() []Status {
	v := o.view.Load()
	if v == nil {
		return nil
	}
	out := make([]Status, len(v.rows))
	for i, r := range v.rows {
		st := r.source.state.Load()
		s := Status{Name: r.entry.Name, V2: st.spec != nil, V3: st.documents[r.entry.GroupVersion] != nil, Confirmed: st.confirmed}
		switch {
		case r.entry.Verdict.Status == corev1.ConditionFalse:
			s.Reason, s.Message = "unavailable", r.entry.Verdict.Reason
		case st.err != nil:
			s.Reason, s.Message = string(poll.ReasonOf(st.err)), st.err.Error()
		case st.confirmed.IsZero():
			s.Reason = "pending"
		}
		out[i] = s
	}
	return out
}

// metrics are counters of the work, and what Status says at the time of a scrape.
type metrics struct {
	status func() []Status
	build  prometheus.Histogram
	polls  *prometheus.CounterVec

	failing, age *prometheus.Desc
}

// resultOK is the result of a poll that was answered; the others are poll.Reasons.
const resultOK = "ok"

func newMetrics(status func() []Status, to prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		status: status,
		build: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_openapi_build_seconds", Help: "Time to merge the OpenAPI v2 document.",
			// From 50 ms, which a plain cluster takes, to 25 s, at which clients give up.
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 10),
		}),
		polls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_openapi_polls_total", Help: "Questions to backends and to the local apiserver about their OpenAPI documents, by result.",
		}, []string{"result"}),
		failing: prometheus.NewDesc("fairlead_openapi_failing",
			"1 while a remote APIService's part of the OpenAPI documents is not confirmed by its backend, by reason.", []string{"name", "reason"}, nil),
		age: prometheus.NewDesc("fairlead_openapi_age_seconds",
			"Time since a remote APIService's backend last gave its OpenAPI documents. Absent: it never did.", []string{"name"}, nil),
	}
	for _, r := range []poll.Reason{resultOK, poll.ReasonUnreachable, poll.ReasonTimeout, poll.ReasonStatus, poll.ReasonTooLarge, poll.ReasonInvalid} {
		m.polls.WithLabelValues(string(r))
	}
	if to == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.build, m.polls, m} {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of OpenAPI: %w", err)
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
