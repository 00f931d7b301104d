package proxy

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/registry"
)

type tables = latest.Tables[*registry.Table]

// metrics counts requests. Its labels are bounded by the table and by lists in this file, never by a client's input.
type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	unknown  prometheus.Counter // requests with a token whose review did not come, see bearer
	tables   tables
	seen     sync.Map    // *registry.Entry → *entrySeries: those that may have series
	other    entrySeries // of requests without an entry
}

func newMetrics(reg prometheus.Registerer, tables tables, active ...prometheus.Collector) *metrics {
	labels := []string{"verb", "group", "version", "code"}
	m := &metrics{
		tables: tables,
		total: metric.CountBy("fairlead_request_total",
			"Requests by Kubernetes verb, group-version of the table and HTTP status; 499 is a client that went away, "+
				"101 an upgraded session, 502 also a cut response, 5xx any unregistered 5..", labels...),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fairlead_request_duration_seconds",
			Help: "Time from a request's head to its last byte, without long-running requests.",
			// From a cached answer to the request timeout; eleven keep a thousand group-versions affordable.
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, labels),
		unknown: metric.Count("fairlead_rule_users_unknown_total",
			"Requests with a token that passed the policy's rules by user, "+
				"because no TokenReview said in time whose it is."),
	}
	metric.Register(reg, append(active, m.total, m.duration, m.unknown)...)
	return m
}

// series are the metrics of a group-version, verb and status, cached: counting hashes no label and takes no lock.
type series struct {
	verb     string
	code     int
	long     bool
	total    prometheus.Counter
	duration prometheus.Observer // nil for long-running requests
	next     *series
}

// maxSeries limits an entry's cached series: a backend with every possible status must not slow down the usual ones.
const maxSeries = 32

type entrySeries struct {
	list    atomic.Pointer[series] // the newest first; a handful
	current atomic.Uint64          // the generation of the last table that was seen with the group-version
	failed  atomic.Uint64          // requests counted as 5xx
}

func (m *metrics) observe(d *Decision, code int, took time.Duration) {
	of := &m.other
	if d.Entry != nil {
		known, ok := m.seen.Load(d.Entry)
		if !ok {
			known, _ = m.seen.LoadOrStore(d.Entry, new(entrySeries))
		}
		of = known.(*entrySeries) //nolint:forcetypeassert // nothing else is stored
	}
	if code >= http.StatusInternalServerError {
		of.failed.Add(1)
	}
	s := m.series(of, d, code)
	s.total.Inc()
	if s.duration != nil {
		s.duration.Observe(took.Seconds())
	}
	// A watch ends after its APIService was deleted. So tell prune after making the series, which may have looked just
	// before. It is not done here: forgetting looks at all series. It may have forgotten these: a successor gets none.
	switch t := m.tables.Table(); {
	case d.Entry == nil, t.Generation() == of.current.Load():
	case t.Entry(d.Entry.GroupVersion) == nil:
		m.seen.Store(d.Entry, new(entrySeries))
	default:
		of.current.Store(t.Generation())
	}
}

// Failed returns the number of requests for an entry that were counted as 5xx. A replaced entry starts from zero.
func (p *Proxy) Failed(e *registry.Entry) uint64 {
	if known, ok := p.metrics.seen.Load(e); ok {
		return known.(*entrySeries).failed.Load() //nolint:forcetypeassert // nothing else is stored
	}
	return 0
}

func (m *metrics) series(of *entrySeries, d *Decision, code int) *series {
	verb, first, n := boundedVerb(d.Request.Verb), of.list.Load(), 0
	for s := first; s != nil; s = s.next {
		if s.code == code && s.verb == verb && s.long == d.LongRunning {
			return s
		}
		n++
	}
	group, version, status := "other", "", boundedCode(code)
	if e := d.Entry; e != nil {
		group, version = e.GroupVersion.Group, e.GroupVersion.Version
	}
	s := &series{verb: verb, code: code, long: d.LongRunning, next: first}
	s.total = m.total.WithLabelValues(verb, group, version, status)
	if !d.LongRunning {
		s.duration = m.duration.WithLabelValues(verb, group, version, status)
	}
	if n < maxSeries {
		of.list.CompareAndSwap(first, s) // else another was added: a later request will add this one
	}
	return s
}

// prune removes the series of group-versions that have left the table, until ctx ends.
func (m *metrics) prune(ctx context.Context) error {
	first := true
	for _, changes := range latest.Changes(ctx, m.tables.Table, time.Tick(time.Minute)) {
		for _, c := range changes {
			if of, ok := m.seen.Load(c.Old); ok {
				// A further backend's are its APIService's. By the newest table: a successor may have counted already.
				m.move(c.Old, cmp.Or(c.New, m.tables.Table().Entry(c.Old.GroupVersion)), of)
			}
		}
		if len(changes) > 0 && !first {
			continue
		}
		first = false
		m.seen.Range(func(key, of any) bool { // for changes between two looks, and requests that outlived their table
			e := key.(*registry.Entry) //nolint:forcetypeassert // nothing else is stored
			if now := m.tables.Table().Entry(e.GroupVersion); now == nil || !slices.Contains(now.Further, e) {
				m.move(e, now, of)
			}
			return true
		})
	}
	return ctx.Err()
}

// move moves the series of an old Entry to the new one; nil means that there is none.
func (m *metrics) move(e, now *registry.Entry, of any) {
	switch now {
	case e:
		return
	case nil:
		gone := prometheus.Labels{"group": e.GroupVersion.Group, "version": e.GroupVersion.Version}
		m.total.DeletePartialMatch(gone)
		m.duration.DeletePartialMatch(gone)
	default:
		m.seen.LoadOrStore(now, of) // stored before the delete, so that the series always have an entry
	}
	m.seen.Delete(e)
}

func boundedVerb(verb string) string {
	switch verb {
	case "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy",
		"post", "put", "head", "options":
		return verb
	}
	return "other"
}

// boundedCode returns the statuses that HTTP registers, and 499, as labels. Of others it returns
// the class (2xx and the like): an extension server could make a series of each.
func boundedCode(code int) string {
	switch {
	case code == statusClientGone || http.StatusText(code) != "":
		return strconv.Itoa(code)
	case code >= 100 && code < 600:
		return strconv.Itoa(code/100) + "xx"
	}
	return "other"
}
