package status

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry/metric"
)

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
		writes: metric.Counter("fairlead_status_write_total", "Writes of the condition fairlead.dev/Available, by result (written, failed).",
			"result", "written", "failed"),
	}
	return m, metric.Register(r, "the status writer", m.leading, m.writes)
}

func (m *metrics) wrote(err error) {
	if err != nil {
		m.writes.WithLabelValues("failed").Inc()
	} else {
		m.writes.WithLabelValues("written").Inc()
	}
}
