package authn

import "github.com/prometheus/client_golang/prometheus"

// metrics are the package's counters; their labels are fixed, so nothing that a client sends makes a series.
type metrics struct {
	hits    prometheus.Counter
	reviews *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) metrics {
	m := metrics{
		hits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_authentication_cache_hits_total",
			Help: "Bearer tokens whose owner, or whose invalidity, was known without asking.",
		}),
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_authentication_reviews_total",
			Help: "TokenReviews by result: authenticated, refused, error, or busy (too many under way).",
		}, []string{"result"}),
	}
	for _, result := range []string{"authenticated", "refused", "error", "busy"} {
		m.reviews.WithLabelValues(result)
	}
	if reg != nil {
		reg.MustRegister(m.hits, m.reviews)
	}
	return m
}

func (m *metrics) reviewed(result string) { m.reviews.WithLabelValues(result).Inc() }
