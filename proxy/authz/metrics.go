package authz

import "github.com/prometheus/client_golang/prometheus"

// metrics are the package's counters; their labels are fixed, so nothing that a client sends makes a series.
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
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_authorization_reviews_total",
			Help: "SubjectAccessReviews by result: allowed, denied, error, or busy (too many under way).",
		}, []string{"result"}),
	}
	for _, result := range []string{"allowed", "denied", "error", "busy"} {
		m.reviews.WithLabelValues(result)
	}
	if reg != nil {
		reg.MustRegister(m.hits, m.reviews)
	}
	return m
}

func (m *metrics) reviewed(result string) { m.reviews.WithLabelValues(result).Inc() }
