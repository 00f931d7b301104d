package health

import (
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/internal/reach"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// fall is how many probes in a row must fail before an endpoint is unhealthy: one lost probe
	// changes nothing. One probe that passes makes it healthy.
	fall = 2
	// firstRetry is the pause after a failed probe. It stays the same while not even the dial succeeds: such an attempt
	// costs one SYN. An endpoint that answers with an error is probed again after a fraction (retryFraction) of the
	// time since its first error, up to lastRetry: an extension server that comes back answers 403 or 500 until its
	// informers have synced, a second at most. It must be served again within 0.3 s of its first good response: a
	// pause, a probe on a busy machine, and the table. Servers are few, and while all are unhealthy nobody is served.
	firstRetry             = 100 * time.Millisecond
	lastRetry, serverRetry = 5 * time.Second, time.Second
	retryFraction          = 8
	// unread is how long after a failure a server counts as one that has not read its rules. A
	// kube-apiserver answers before it has read roles and bindings, for seconds if there are many.
	unread = 30 * time.Second
	// dialShare and probeShare stretch the pause where many endpoints fail in the same way. The pause is at least this
	// share times their number: 4,000 redials a second at some 50 µs, or 200 handshakes at a millisecond, a fifth of a
	// processor each. 400 endpoints that refuse are asked every 100 ms, 10,000 every 2.5 s. All claims of an endpoint
	// share one connection, so each further claim costs a twentieth (oneMore) of the first: some 50 µs, against a
	// handshake. Backends share this equally: whoever writes the EndpointSlices of one must not delay others.
	dialShare  = 250 * time.Microsecond
	probeShare = 5 * time.Millisecond
	oneMore    = 20
	// hungAfter is how long an endpoint must do no handshakes to count as hung. With the time until
	// that is noticed, its watches over HTTP/1.1 end as soon as over HTTP/2, after some 45 s.
	hungAfter = 20 * time.Second
	// sayEvery is the time between lines about an endpoint that flaps, of which four come at once.
	sayEvery = 10 * time.Second
)

// claim says that an endpoint serves an APIService's group-version. It holds what is requested for
// the claim and what was found out. Each claim has its own verdict. The fields below state belong
// to the target's goroutine. While a probe of the claim runs, the probe reads failures.
type claim struct {
	target *target
	name   string // the APIService's
	at     *url.URL
	// Its series, looked up once: a forgotten claim counts into those no longer exported, and brings none back.
	passed, failed prometheus.Counter
	gauge          prometheus.Gauge

	// Flags set by other goroutines. Each is followed by a poke of the target.
	restate atomic.Bool
	gone    atomic.Bool // the table no longer has it
	healthy atomic.Bool // for other goroutines: the last report said Healthy
	last    atomic.Pointer[probe]
	serves  atomic.Pointer[served]
	latency latency
	// For servers: it has accepted us once, and until when a refusal may mean that it lacks its rules.
	accepted    atomic.Bool
	unreadUntil atomic.Pointer[time.Time] // nil means that none does

	// state
	report     registry.Report // what is known now; Unprobed means nothing yet
	reported   registry.Report // the last one sent
	asking     bool            // a probe is under way
	failures   int             // probes failed in a row
	trouble    trouble         // how they failed
	since      time.Time       // start of the first probe that failed in this way
	started    time.Time       // of the last probe
	due        time.Time       // of the next probe; zero means together with all claims that do not fail
	suspect    bool            // an alarm has come since the last probe began
	mustReport bool            // report the next result even if unchanged, because of a hint

	// Of the log: the last state, the one that it has, changes without a line, and how many lines may come.
	seen, said string
	unsaid     int
	lines      *rate.Limiter
}

type probe struct {
	ended time.Time
	took  time.Duration // dial and handshake included
	fault string        // empty means that it passed
}

type trouble uint8

const (
	none      trouble = iota
	unreached         // not even the dial succeeds
	silent            // it accepts connections and does no handshakes
	answered          // the endpoint answers, but with a fault
	troubles
)

func newClaim(t *target, e *registry.Entry) *claim {
	m := t.prober.metrics
	return &claim{
		target: t, name: e.Name, at: probeURL(e, t.key.address), due: time.Now(),
		passed: m.probes.WithLabelValues(e.Name, "passed"),
		failed: m.probes.WithLabelValues(e.Name, "failed"),
		gauge:  m.healthy.WithLabelValues(e.Name, t.key.address),
		lines:  rate.NewLimiter(rate.Every(sayEvery), 4),
		report: registry.Report{
			Name: e.Name, Backend: t.key.backend, Endpoint: registry.Endpoint{Address: t.key.address},
		},
	}
}

// follow takes over the endpoint's state in a newer table.
func (c *claim) follow(ep *registry.Endpoint) {
	// The table has lost the report: some table between, which we did not see, lacked the endpoint,
	// or had another Backend, which kept an older report and for which ours was dropped.
	healthy := c.healthy.Load()
	if ep.Health == registry.Unprobed || (ep.Health == registry.Healthy) != healthy ||
		healthy && ep.Slow != c.latency.slow.Load() {
		c.target.set(&c.restate)
	}
}

// take updates the claim from the result of a probe. One that was due meanwhile is still due.
func (c *claim) take(f finding) {
	c.asking = false
	c.target.prober.metrics.duration.Observe(f.took.Seconds())
	missed := !c.due.IsZero()
	if c.mustReport && !missed && !c.target.hinted.Load() { // else the next probe answers: the hint is newer
		c.mustReport = false
		c.restate.Store(true)
	}
	if f.err == nil {
		c.passed.Inc()
		c.failures, c.trouble, c.report.Began, c.report.HTTP2 = 0, none, c.started, f.http2
		c.report.Endpoint = registry.Endpoint{Address: c.target.key.address, Health: registry.Healthy}
		c.latency.probed(f.latency)
		c.last.Store(&probe{time.Now(), f.took, ""})
		return
	}
	c.failed.Add(float64(f.failures))
	if !errors.Is(f.err, errUnread) {
		c.unreadUntil.Store(new(time.Now().Add(unread)))
	}
	reason, message := explain(f.err, c.at.String())
	c.last.Store(&probe{time.Now(), f.took, message})
	if c.believes(f.err) {
		return
	}
	if !reach.Exhausted(f.err) { // open connections to it may work
		c.failures += f.failures
	}
	if c.failures >= fall {
		c.report.Health, c.report.Began = registry.Unhealthy, c.started
		c.report.Reason, c.report.Message, c.report.Gone = reason, message, errors.Is(f.err, errGone)
	}
	how := answered
	switch {
	case f.silent && (!f.undialled || c.trouble == silent): // its queue of connections may have become full
		how = silent
	case f.undialled:
		how = unreached
	}
	if c.trouble != how {
		c.trouble, c.since = how, c.started
	}
	c.report.Hung = how == silent && time.Since(c.since) >= hungAfter
	c.due = c.started.Add(c.retry())
	// A slow probe has waited already. Still pause: two probes must not run back to back.
	if soonest := time.Now().Add(firstRetry); missed || c.due.Before(soonest) {
		c.due = soonest
	}
}

// believes reports whether the open connection, which kube-aggregator keeps, says more than an error: a failed lookup.
// It must be of a claim that has passed, not only of another one, and no other endpoint can serve.
func (c *claim) believes(err error) bool {
	w, passed := c.target.watch, c.failures == 0 && c.report.Health == registry.Healthy
	if w == nil || w.Err() != nil || !passed || !errors.As(err, new(*net.DNSError)) {
		return false
	}
	for _, o := range (*c.target.prober.index.Load())[c.name] {
		if o != c && o.healthy.Load() {
			return false
		}
	}
	return true
}

// retry returns the time from the start of a failed probe to the start of the next.
func (c *claim) retry() time.Duration {
	pause, share, longest := firstRetry, dialShare, lastRetry
	if c.target.key.server {
		longest = serverRetry
	}
	if c.trouble != unreached {
		pause, share = max(pause, c.started.Sub(c.since)/retryFraction), probeShare
	}
	alike := time.Duration(c.target.prober.failing[c.trouble].of(c.target.key.backend))
	return min(max(pause, alike*share/oneMore), longest)
}

// weights weigh the targets that fail in one way, by Backend: oneMore for the first failing claim, one for each other.
type weights struct {
	mu sync.Mutex                  // guards by
	by map[*registry.Backend]int64 // only those with some weight
}

func (w *weights) add(b *registry.Backend, weight int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = make(map[*registry.Backend]int64)
	}
	if w.by[b] += weight; w.by[b] == 0 {
		delete(w.by, b)
	}
}

// of returns the weight of all if each Backend weighed as much as b: so each gets an equal share.
func (w *weights) of(b *registry.Backend) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[b] * int64(len(w.by))
}

func (c *claim) sendReport() {
	c.report.Slow = c.latency.slow.Load() && c.report.Health == registry.Healthy
	stale := c.failures > 0 && c.report.Health == registry.Healthy // do not confirm it to whoever sent a hint
	if c.report.Health != registry.Unprobed &&
		(c.report.Endpoint != c.reported.Endpoint || !stale && c.restate.Load()) {
		c.restate.Store(false)
		c.reported = c.report
		c.healthy.Store(c.report.Health == registry.Healthy)
		c.gauge.Set(metric.Number(c.report.Health == registry.Healthy))
		c.target.prober.config.Report(c.report)
	}
	c.say() // after the report: a line is I/O, and may block
}

// say logs the state, unless the log has it, or enough of others. The last one is said later.
func (c *claim) say() {
	state := [...]string{registry.Healthy: "healthy", registry.Unhealthy: "unhealthy"}[c.reported.Health]
	if c.reported.Slow {
		state = "slow"
	}
	if state != c.seen {
		c.seen, c.unsaid = state, c.unsaid+1
	}
	if state == c.said || !c.lines.Allow() {
		return
	}
	log := c.target.prober.log.With("apiservice", c.name, "endpoint", c.target.key.address, "unsaid", c.unsaid-1)
	c.said, c.unsaid = state, 0
	switch state {
	case "unhealthy":
		log.Warn("endpoint is unhealthy", "reason", c.reported.Reason, "err", c.reported.Message)
	case "slow":
		log.Warn("endpoint is slow compared with its peers")
	default:
		log.Info("endpoint is healthy")
	}
}
