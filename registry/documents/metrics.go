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

// resultOK is the result of a successful request. The other results are Reasons.
const resultOK = "ok"

// newPolls makes fairlead_<document>_polls_total, which counts requests by result.
func newPolls(document string) *prometheus.CounterVec {
	return metric.Counter("fairlead_"+strings.ToLower(document)+"_polls_total", fmt.Sprintf("Requests to backends and to the local apiserver for %s, by result.", document), "result",
		resultOK, string(ReasonUnreachable), string(ReasonTimeout), string(ReasonStatus), string(ReasonTooLarge), string(ReasonInvalid))
}

// polled counts a request by its result.
func (s *Sources[S]) polled(err error) {
	s.polls.WithLabelValues(string(cmp.Or(reasonOf(err), resultOK))).Inc()
}

// gauges show how current and how large the document is: fairlead_<document>_failing, _age_seconds
// and _document_bytes.
func (k *Kind[S]) gauges() metric.Gauges {
	name := "fairlead_" + strings.ToLower(k.Name)
	failing := prometheus.NewDesc(name+"_failing",
		fmt.Sprintf("1 while a remote APIService's part of %s is not confirmed by its backend, by reason.", k.Name), []string{"name", "reason"}, nil)
	age := prometheus.NewDesc(name+"_age_seconds",
		fmt.Sprintf("Time since a remote APIService's backend last confirmed its part of %s. Absent if it never did.", k.Name), []string{"name"}, nil)
	bytes := prometheus.NewDesc(name+"_document_bytes", k.SizesHelp, []string{"document"}, nil)
	return metric.Gauges{All: []*prometheus.Desc{failing, age, bytes}, Make: func(gauge func(*prometheus.Desc, float64, ...string)) {
		now := time.Now()
		k.Status(func(f Freshness) {
			if f.Reason != "" {
				gauge(failing, 1, f.Name, f.Reason)
			}
			if !f.Confirmed.IsZero() {
				gauge(age, now.Sub(f.Confirmed).Seconds(), f.Name)
			}
		})
		k.Sizes(func(document string, size int) { gauge(bytes, float64(size), document) })
	}}
}
