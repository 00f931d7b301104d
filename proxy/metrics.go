package proxy

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/registry"
)

// metrics counts requests. Its labels are bounded by the table and by lists of this file, never by what a client sends.
type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	active   *prometheus.GaugeVec
	table    func() *registry.Table
	seen     sync.Map // *registry.Entry → struct{}: those that may have series
}

func newMetrics(reg prometheus.Registerer, table func() *registry.Table) (*metrics, error) {
	labels := []string{"verb", "group", "version", "code"}
	m := &metrics{
		table: table,
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_request_total",
			Help: "Requests by Kubernetes verb, group-version of the table and HTTP status; 499 is a client that went away, 101 a session that was upgraded.",
		}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fairlead_request_duration_seconds",
			Help: "Time from a request's head to its last byte, long-running requests left out.",
			// From a cached answer to the request timeout; ten buckets keep a thousand group-versions affordable.
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, labels),
		active: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fairlead_requests_active",
			Help: "Requests under way, by kind: request, watch (all long-running ones), session (upgraded).",
		}, []string{"kind"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.total, m.duration, m.active} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering request metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) observe(d *Decision, code int, took time.Duration) {
	group, version := "other", ""
	if e := d.Entry; e != nil {
		group, version = e.GroupVersion.Group, e.GroupVersion.Version
		if _, known := m.seen.Load(e); !known {
			m.seen.Store(e, struct{}{})
		}
		// A watch ends after its APIService was deleted, and would make series that nobody removes. Asked after they are made: follow may be at it right now.
		defer func() {
			if m.table().Entry(e.GroupVersion) == nil {
				m.forget(e.GroupVersion)
			}
		}()
	}
	verb := boundedVerb(d.Request.Verb)
	status := statusLabel(code)
	m.total.WithLabelValues(verb, group, version, status).Inc()
	if !d.LongRunning {
		m.duration.WithLabelValues(verb, group, version, status).Observe(took.Seconds())
	}
}

// follow removes the series of group-versions that have left the table, until ctx ends.
func (m *metrics) follow(ctx context.Context) error {
	for {
		t := m.table()
		m.seen.Range(func(key, _ any) bool {
			e := key.(*registry.Entry) //nolint:forcetypeassert // nothing else is stored
			switch now := t.Entry(e.GroupVersion); now {
			case e:
			case nil:
				m.seen.Delete(key)
				m.forget(e.GroupVersion)
			default:
				m.seen.Store(now, struct{}{}) // it stands for the series now; first, so that they are never without
				m.seen.Delete(key)
			}
			return true
		})
		select {
		case <-t.Superseded():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *metrics) forget(gv schema.GroupVersion) {
	gone := prometheus.Labels{"group": gv.Group, "version": gv.Version}
	m.total.DeletePartialMatch(gone)
	m.duration.DeletePartialMatch(gone)
}

func boundedVerb(verb string) string {
	switch verb {
	case "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy", "post", "put", "head", "options":
		return verb
	}
	return "other"
}

// statusLabel is strconv.Itoa; numbers below 100 and what is no status at all become "other".
func statusLabel(code int) string {
	if code < 100 || code > 599 {
		return "other"
	}
	return strconv.Itoa(code)
}
