package entrypoint

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the publisher's.
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
		contested: gauge("contested", "1 from when somebody else, such as kube-apiserver's own reconciler, is given way to, until nobody else has written the endpoints of default/kubernetes for a minute."),
		foreign: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_entrypoint_foreign_writes_total", Help: "Changes of the endpoints of default/kubernetes by somebody other than Fairlead.",
		}),
		rounds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_entrypoint_rounds_total", Help: "Rounds of renewing the Lease and publishing, by result (passed, failed).",
		}, []string{"result"}),
	}
	for _, result := range []string{"passed", "failed"} {
		m.rounds.WithLabelValues(result) // exists at 0, so that a rate over it is right from the first one
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.published, m.replicas, m.contested, m.foreign, m.rounds} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) round(err error) {
	result := "passed"
	if err != nil {
		result = "failed"
	}
	m.rounds.WithLabelValues(result).Inc()
}
