package backend

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// phase is a part of the time that a request or a dial takes.
type phase uint8

const (
	phaseResolve phase = iota
	phaseConnect
	phaseTLS
	phaseFirstByte
	phases
)

func (p phase) String() string {
	return [...]string{"resolve", "connect", "tls", "first_byte"}[p]
}

// meter counts for one Upstream. It lives and dies with it, so no series outlives its APIService.
type meter struct {
	connections atomic.Int64
	exhausted   atomic.Uint64
	rejected    [2]atomic.Uint64 // in flight, long-running
	retries     [failContext + 1]atomic.Uint64
	histograms  [phases]prometheus.Histogram
	dials       *prometheus.CounterVec
	handshakes  *prometheus.CounterVec
}

func newMeter(name string) *meter {
	labels := prometheus.Labels{"name": name}
	m := &meter{
		dials:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_backend_dials_total", Help: "Connections dialled, by the phase that failed or ok.", ConstLabels: labels}, []string{"result"}),
		handshakes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fairlead_backend_handshake_errors_total", Help: "Failed TLS handshakes, by class.", ConstLabels: labels}, []string{"class"}),
	}
	for p := range phases {
		m.histograms[p] = prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:        "fairlead_backend_phase_seconds",
			Help:        "Time taken to resolve, to connect, by the TLS handshake, and from sending a request to its response head (long-running ones excepted).",
			ConstLabels: prometheus.Labels{"name": name, "phase": p.String()},
			// From a backend on this machine to the request timeout.
			Buckets: []float64{.001, .005, .025, .1, .5, 1, 2.5, 5, 10, 30, 60},
		})
	}
	return m
}

func (m *meter) phase(p phase, d time.Duration) { m.histograms[p].Observe(d.Seconds()) }

func (m *meter) retry(k kind) { m.retries[k].Add(1) }

func (m *meter) reject(longRunning bool) {
	i := 0
	if longRunning {
		i = 1
	}
	m.rejected[i].Add(1)
}

func (m *meter) dialled(err *dialError) {
	result := "ok"
	if err != nil {
		result = err.phase
	}
	m.dials.WithLabelValues(result).Inc()
	if result == "tls" {
		m.handshakes.WithLabelValues(handshakeClass(err.err)).Inc()
	}
}

// collector shows the upstreams that there are at the moment of the scrape.
type collector struct {
	upstreams   func() []*Upstream
	inFlight    *prometheus.Desc
	connections *prometheus.Desc
	retries     *prometheus.Desc
	rejections  *prometheus.Desc
}

func newCollector(upstreams func() []*Upstream) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("fairlead_backend_"+name, help, append([]string{"name"}, labels...), nil)
	}
	return &collector{
		upstreams:   upstreams,
		inFlight:    desc("requests_in_flight", "Requests that hold a place among those in flight, by kind.", "kind"),
		connections: desc("connections", "Open pooled connections."),
		retries:     desc("retries_total", "Tries after the first, by what had failed before.", "after"),
		rejections:  desc("rejections_total", "Requests refused because a limit was reached, and retries because the budget was used up.", "limit"),
	}
}

// Describe sends nothing: the collector is unchecked, because the names are those of the table.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the series of every upstream.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, u := range c.upstreams() {
		gauge := func(d *prometheus.Desc, v int64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{u.name}, labels...)...)
		}
		counter := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{u.name}, labels...)...)
		}
		gauge(c.inFlight, u.inFlight.Load(), "request")
		gauge(c.inFlight, u.longRunning.Load(), "longrunning")
		gauge(c.connections, u.meter.connections.Load())
		counter(c.rejections, u.meter.rejected[0].Load(), "inflight")
		counter(c.rejections, u.meter.rejected[1].Load(), "longrunning")
		counter(c.rejections, u.meter.exhausted.Load(), "retry_budget")
		for _, k := range []kind{failDial, failUnsent, failRefused, failGoaway, failLost, failEjected} {
			counter(c.retries, u.meter.retries[k].Load(), k.String())
		}
		for _, h := range u.meter.histograms {
			h.Collect(ch)
		}
		u.meter.dials.Collect(ch)
		u.meter.handshakes.Collect(ch)
	}
}
