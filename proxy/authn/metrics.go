package authn

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
			Name: "fairlead_authentication_cache_hits_total",
			Help: "Bearer tokens whose owner, or whose invalidity, was known without asking.",
		}),
		reviews: metric.Counter("fairlead_authentication_reviews_total", "TokenReviews by result: authenticated, refused, error, or busy (too many under way).", "result", "authenticated", "refused", "error", "busy"),
	}
	if reg != nil {
		reg.MustRegister(m.hits, m.reviews)
	}
	return m
}

func (m *metrics) reviewed(result string) { m.reviews.WithLabelValues(result).Inc() }
