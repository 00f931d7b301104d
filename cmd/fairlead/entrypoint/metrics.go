package entrypoint

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry/metric"
)

type metrics struct {
	published prometheus.Gauge
	replicas  prometheus.Gauge
	contested prometheus.Gauge
	foreign   prometheus.Counter
	rounds    *prometheus.CounterVec // :: result
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "fairlead_entrypoint_" + name, Help: help})
	}
	m := &metrics{
		published: gauge("published", "1 while this replica has its Lease and so is an endpoint of the Service default/kubernetes."),
		replicas:  gauge("replicas", "Replicas with a Lease, as this one sees them."),
		contested: gauge("contested", "1 while Fairlead gives way to another writer, such as kube-apiserver's own reconciler, until no other writer has changed the endpoints of default/kubernetes for a minute."),
		foreign: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_entrypoint_foreign_writes_total", Help: "Changes of the endpoints of default/kubernetes by writers other than Fairlead.",
		}),
		rounds: metric.Counter("fairlead_entrypoint_rounds_total", "Rounds of renewing the Lease and publishing, by result (passed, failed).", "result", "passed", "failed"),
	}
	return m, metric.Register(r, "the entrypoint", m.published, m.replicas, m.contested, m.foreign, m.rounds)
}

func (m *metrics) round(err error) {
	result := "passed"
	if err != nil {
		result = "failed"
	}
	m.rounds.WithLabelValues(result).Inc()
}
