package health

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/metric"
)

// metrics are the prober's. Series come and go with the objects of the table. Only the objects'
// names are labels.
type metrics struct {
	duration prometheus.Histogram
	probes   *prometheus.CounterVec // :: name, result
	healthy  *prometheus.GaugeVec   // :: name, endpoint
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_probe_duration_seconds",
			Help: "Duration of probes of backend endpoints, dial and handshake included.",
			// From a handshake on loopback to the timeout.
			Buckets: []float64{0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5},
		}),
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_probe_total",
			Help: "Probes of backend endpoints, by APIService and result (passed, failed).",
		}, []string{"name", "result"}),
		healthy: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fairlead_endpoint_healthy",
			Help: "1 if the endpoint is healthy, 0 if it is not or has not been found out yet.",
		}, []string{"name", "endpoint"}),
	}
	return m, metric.Register(r, "the prober", m.duration, m.probes, m.healthy)
}

// endpointSeries are the series of one claim, looked up once. A forgotten claim goes on counting
// into series that are no longer exported: it cannot bring them back.
type endpointSeries struct {
	duration       prometheus.Observer
	passed, failed prometheus.Counter
	healthy        prometheus.Gauge
}

func (m *metrics) endpoint(name, address string) endpointSeries {
	return endpointSeries{
		duration: m.duration,
		passed:   m.probes.WithLabelValues(name, "passed"),
		failed:   m.probes.WithLabelValues(name, "failed"),
		healthy:  m.healthy.WithLabelValues(name, address),
	}
}

func (s endpointSeries) probed(f finding) {
	s.duration.Observe(f.took.Seconds())
	if f.err == nil {
		s.passed.Inc()
	} else {
		s.failed.Add(float64(f.failures))
	}
}

func (s endpointSeries) set(r registry.Report) {
	s.healthy.Set(metric.Number(r.Health == registry.Healthy))
}
