package authz

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// metrics are the package's counters. Their labels are fixed, so clients cannot create series.
type metrics struct {
	hits    prometheus.Counter
	reviews *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) metrics {
	m := metrics{
		hits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_authorization_cache_hits_total",
			Help: "Authorization decisions taken from the cache.",
		}),
		reviews: metric.Counter("fairlead_authorization_reviews_total", "SubjectAccessReviews by result: allowed, denied, error, or busy (too many under way).", "result", "allowed", "denied", "error", "busy"),
	}
	if reg != nil {
		reg.MustRegister(m.hits, m.reviews)
	}
	return m
}

func (m *metrics) reviewed(result string) { m.reviews.WithLabelValues(result).Inc() }
