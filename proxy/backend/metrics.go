package backend

import (
	"cmp"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

const (
	phaseResolve = iota
	phaseConnect
	phaseTLS
	phaseFirstByte
	phaseTotal
	phases
)

const (
	dialOK = iota
	dialResolve
	dialConnect
	dialTLS
	dialTrust
)

//nolint:gochecknoglobals // nothing writes them
var (
	dialResultNames = [...]string{
		dialOK: "ok", dialResolve: "resolve", dialConnect: "connect", dialTLS: "tls", dialTrust: "trust",
	}
	limitNames = [...]string{
		limitInFlight: "inflight", limitLongRunning: "longrunning", limitServer: "server", limitSessions: "sessions",
	}
	handshakeClasses = [...]string{
		"other", "timeout", "unknown_authority", "hostname", "expired", "invalid", "alert", "not_tls", "closed",
	}
	// bounds are the buckets of a histogram: from a backend on this machine to the request timeout.
	bounds  = [...]float64{.001, .005, .025, .1, .5, 1, 2.5, 5, 10, 30, 60}
	retried = [...]engine.Reason{engine.ReasonDial, engine.ReasonRefused, engine.ReasonLost, engine.ReasonEjected}
)

// histogram takes 110 bytes: each APIService has one for each phase, and there may be 10,000 APIServices.
type histogram struct {
	buckets [len(bounds) + 1]atomic.Uint64
	sum     atomic.Uint64 // nanoseconds
}

func (h *histogram) observe(d time.Duration) {
	i, _ := slices.BinarySearch(bounds[:], d.Seconds())
	h.buckets[i].Add(1)
	h.sum.Add(uint64(max(d, 0)))
}

func (h *histogram) collect(ch chan<- prometheus.Metric, desc *prometheus.Desc, labels ...string) {
	count := uint64(0)
	cumulative := make(map[float64]uint64, len(h.buckets))
	for i, b := range bounds {
		count += h.buckets[i].Load()
		cumulative[b] = count
	}
	count += h.buckets[len(h.buckets)-1].Load()
	if count > 0 {
		ch <- prometheus.MustNewConstHistogram(desc, count, float64(h.sum.Load())/float64(time.Second),
			cumulative, labels...)
	}
}

// meter has the counters of one Upstream. They disappear with it, so no series outlives its APIService.
type meter struct {
	connections atomic.Int64
	rejected    [len(limitNames)]atomic.Uint64
	refused     [len(limitNames)]bound.Tally // the same, lately, by source
	exhausted   atomic.Uint64
	retries     [len(retried)]atomic.Uint64
	dials       [len(dialResultNames)]atomic.Uint64
	handshakes  [len(handshakeClasses)]atomic.Uint64
	histograms  [phases]histogram
	// latencies counts requests by duration, in powers of two of a microsecond: fine enough for a percentile on a page,
	// at the cost of one addition per request. The last element holds all requests that took more than a minute.
	latencies [28]atomic.Uint64
}

func (m *meter) retry(after engine.Reason) {
	if after == engine.ReasonReset { // also of a request that was sent
		after = engine.ReasonLost
	}
	if i := slices.Index(retried[:], after); i >= 0 {
		m.retries[i].Add(1)
	}
}

// The limits at which requests are refused: the backend's own, then those of all together.
const (
	limitInFlight = iota
	limitLongRunning
	limitServer
	limitSessions
)

func (m *meter) refuse(limit int, from bound.Source) {
	m.rejected[limit].Add(1)
	m.refused[limit].Add(from)
}

// Refuse counts a request refused at a limit of all backends together: of sessions, or of requests in flight.
func (u *Upstream) Refuse(from bound.Source, session bool) {
	limit := limitServer
	if session {
		limit = limitSessions
	}
	u.meter.refuse(limit, from)
}

// limit returns the number, the places and the maximum of an APIService's limit for a request.
func (u *Upstream) limit(longRunning bool) (limit int, places *bound.Places, most int64) {
	v := u.view.Load()
	if longRunning {
		return limitLongRunning, &u.longRunning, v.maxLongRunning
	}
	return limitInFlight, &u.inFlight, v.maxInFlight
}

// Limits returns the limits at which requests are refused, or were lately, worst first.
func (u *Upstream) Limits() (list []bound.Limit) {
	v := u.view.Load()
	places := [len(limitNames)]*bound.Places{limitInFlight: &u.inFlight, limitLongRunning: &u.longRunning}
	most := [len(limitNames)]int64{limitInFlight: v.maxInFlight, limitLongRunning: v.maxLongRunning}
	for i, name := range limitNames {
		if l, reached := bound.Reached(name, places[i], most[i], &u.meter.refused[i]); reached {
			list = append(list, l)
		}
	}
	slices.SortStableFunc(list, func(a, b bound.Limit) int { return cmp.Compare(b.Refused, a.Refused) })
	return list
}

// collector collects the upstreams that exist at the time of the scrape.
type collector struct {
	metric.Gauges // describes the series, or none: Pools and Local register a collector each, and only one may
	upstreams     func() []*Upstream

	inFlight, connections, dials, handshakes, retries, rejections, phaseHistogram *prometheus.Desc
}

func newCollector(upstreams func() []*Upstream, describes bool) *collector {
	c := &collector{upstreams: upstreams}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		d := prometheus.NewDesc("fairlead_backend_"+name, help, append([]string{"name"}, labels...), nil)
		if describes {
			c.All = append(c.All, d)
		}
		return d
	}
	c.inFlight = desc("requests_in_flight", "Requests that hold a place among those in flight, by kind.", "kind")
	c.connections = desc("connections", "Open pooled connections over HTTP/1.1.")
	c.dials = desc("dials_total", "Connections dialed, by result: ok, or the step that failed. "+
		"A connection that several APIServices share counts for one of them.", "result")
	c.handshakes = desc("handshake_errors_total", "Failed TLS handshakes, by class.", "class")
	c.retries = desc("retries_total", "Retries, by how the previous try failed.", "after")
	c.rejections = desc("rejections_total",
		"Requests refused at a limit, and retries refused by the retry budget.", "limit")
	c.phaseHistogram = desc("phase_seconds",
		"Time to resolve, to connect, for the TLS handshake, from sending a request to its response head, "+
			"and from a request's arrival to its last byte (long-running ones excepted).", "phase")
	return c
}

// Collect sends every upstream's series. Error counters are left out while they are 0: there may be 10,000 APIServices.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, u := range c.upstreams() {
		m := &u.meter
		gauge := func(d *prometheus.Desc, v int64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v),
				append([]string{u.name}, labels...)...)
		}
		// counter leaves out 0, unless always is set.
		counter := func(d *prometheus.Desc, always bool, v uint64, label string) {
			if v > 0 || always {
				ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), u.name, label)
			}
		}
		gauge(c.inFlight, u.inFlight.Held(), "request")
		gauge(c.inFlight, u.longRunning.Held(), "longrunning")
		gauge(c.connections, m.connections.Load())
		for limit, name := range limitNames {
			own := limit == limitInFlight || limit == limitLongRunning
			counter(c.rejections, own, m.rejected[limit].Load(), name)
		}
		counter(c.rejections, true, m.exhausted.Load(), "retry_budget")
		for i, name := range dialResultNames {
			counter(c.dials, i == dialOK, m.dials[i].Load(), name)
		}
		for i, class := range handshakeClasses {
			counter(c.handshakes, false, m.handshakes[i].Load(), class)
		}
		for i, after := range retried {
			counter(c.retries, false, m.retries[i].Load(), string(after))
		}
		for p, name := range [phases]string{"resolve", "connect", "tls", "first_byte", "total"} {
			m.histograms[p].collect(ch, c.phaseHistogram, u.name, name)
		}
	}
}

// Load returns the current load for the status page: requests in flight, long-running ones, and the
// requests of each endpoint by address; and the last GOAWAY with an error of those that sent one.
func (u *Upstream) Load() (inFlight, longRunning int64, endpoints map[string]int64, said map[string]string) {
	endpoints, said = make(map[string]int64), make(map[string]string)
	for _, e := range u.snapshot() {
		endpoints[e.address] = e.inFlight.Load()
		if s := cmp.Or(e.via.Load(), e).said.Load(); s != nil {
			said[e.address] = *s
		}
	}
	return u.inFlight.Held(), u.longRunning.Held(), endpoints, said
}

// Stand returns how many client connections stay with a server, and the group-versions that another one lacks.
func (l *Local) Stand(address string) (clients int64, only []string) {
	at := l.At(address).at.Load()
	if at == nil { // meanwhile
		return 0, nil
	}
	for what, by := range *l.only.Load() {
		if what.Version != "" && what.Resource == "" && slices.Contains(by, at) {
			only = append(only, what.GroupVersion().String())
		}
	}
	slices.Sort(only)
	return at.clients.Load(), only
}

// Which returns the server that gets a request of a connection, and why.
func (l *Local) Which(s *Stay, what schema.GroupVersionResource) string {
	switch by := l.For(s, what); {
	case by != s:
		return by.at.Load().of[0].address + " (not all of them serve it)"
	case s != nil && s.at.Load() != nil:
		return s.at.Load().of[0].address + " (where this connection stays)"
	}
	return l.pools[0].view.Load().other(nil).address + " (where a new connection goes)"
}

// Finish records how long a request that is not long-running took, from its arrival to its last
// byte, if an endpoint answered it. It does not block or allocate.
func (u *Upstream) Finish(took time.Duration) {
	u.meter.histograms[phaseTotal].observe(took)
	us, all := uint64(max(took, 0)/time.Microsecond), &u.meter.latencies
	all[min(bits.Len64(us), len(all)-1)].Add(1)
}

// Latencies returns the requests so far by duration: element i counts those below 2^i µs that no earlier one counts.
func (u *Upstream) Latencies() []uint64 {
	out := make([]uint64, len(u.meter.latencies))
	for i := range out {
		out[i] = u.meter.latencies[i].Load()
	}
	return out
}
