package status

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the writer's.
type metrics struct {
	leading prometheus.Gauge
	writes  *prometheus.CounterVec // :: result
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_status_writer_leading",
			Help: "1 while this replica holds the Lease and writes statuses.",
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_status_write_total",
			Help: "Writes of the condition fairlead.dev/Available, by result (written, failed).",
		}, []string{"result"}),
	}
	for _, result := range []string{"written", "failed"} {
		m.writes.WithLabelValues(result) // exists at 0, so that a rate over it is right from the first one
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.leading, m.writes} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) wrote(err error) {
	if err != nil {
		m.writes.WithLabelValues("failed").Inc()
	} else {
		m.writes.WithLabelValues("written").Inc()
	}
}
