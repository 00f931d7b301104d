package health

import (
	"net/url"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// fall is how many probes in a row must fail before an endpoint is unhealthy: one lost probe changes nothing. One that passes makes it
	// healthy.
	fall = 2
	// firstRetry is the pause after a probe that failed. While not even the dial succeeds it stays so: such an
	// attempt costs one SYN. What answers, but badly, is asked again after a fraction (retryFraction) of the time for which it
	// has, up to lastRetry: an extension server that comes back answers 403 or 500 until its informers have synced,
	// a second at most, and is to be served again within 0.3 s of its first good answer: a pause, a probe on a busy machine, and the table.
	firstRetry    = 100 * time.Millisecond
	lastRetry     = 5 * time.Second
	retryFraction = 8
	// dialShare and probeShare stretch the pause where many endpoints fail alike, to as many times that as there are: 4,000
	// redials a second at some 50 µs, 200 handshakes at a millisecond, a fifth of a processor each.
	// 400 endpoints that refuse are asked every 100 ms, 10,000 every 2.5 s. All claims of an endpoint are asked for on one connection: each one more costs
	// a twentieth of what the first does, some 50 µs beside a handshake.
	dialShare  = 250 * time.Microsecond
	probeShare = 5 * time.Millisecond
	oneMore    = 20
)

// claim is that an endpoint serves an APIService's group-version: what it is asked for, and what was found out. Each has a verdict of its own. The fields below state
// belong to its target's goroutine; while it is asked for, what asks reads failures.
type claim struct {
	target *target
	name   string // the APIService's
	at     *url.URL
	url    string // it, as kube-aggregator writes it in its messages
	series endpointSeries

	// Notes from others, each followed by a poke of the target.
	slow    atomic.Bool
	restate atomic.Bool
	gone    atomic.Bool // the table has it no longer
	healthy atomic.Bool // a note to others: the last report said Healthy
	latency latency

	// state
	report   registry.Report // what is known now; Unprobed: nothing yet
	told     registry.Report // last one sent
	asking   bool            // a probe is under way
	failures int             // probes failed in a row
	trouble  trouble         // how they failed
	since    time.Time       // when that began: the start of the first probe that failed so
	started  time.Time       // of the last probe
	due      time.Time       // of the next one; zero: with all that do not fail
	doubted  bool            // an alarm has come since the last one
	owed     bool            // whoever gave a hint doubts the server until it is told, though it be what was known
}

// trouble is how an endpoint fails.
type trouble uint8

const (
	none      trouble = iota
	unreached         // not even the dial succeeds
	answered          // by a fault
	troubles
)

func newClaim(t *target, e *registry.Entry) *claim {
	at := probeURL(e, t.key.address)
	return &claim{
		target: t, name: e.Name, at: at, url: at.String(), due: time.Now(),
		series: t.prober.metrics.endpoint(e.Name, t.key.address),
		report: registry.Report{Name: e.Name, Backend: t.key.backend, Address: t.key.address},
	}
}

// follow takes over what a newer table says of the endpoint.
func (c *claim) follow(ep *registry.Endpoint) {
	// The table has lost what was reported: the endpoint was gone for a table that we did not see.
	if ep.Health == registry.Unprobed {
		c.target.note(&c.restate)
	}
}

func (c *claim) begin(now time.Time) {
	c.asking, c.doubted, c.started, c.due = true, false, now, time.Time{}
}

// take draws the conclusions of a probe. One that was due meanwhile is so still.
func (c *claim) take(f finding) {
	c.asking = false
	c.series.probed(f)
	missed := !c.due.IsZero()
	if c.owed && !missed {
		c.owed = false
		c.restate.Store(true)
	}
	if f.err == nil {
		c.failures, c.trouble = 0, none
		c.report.Health, c.report.Reason, c.report.Message = registry.Healthy, "", ""
		c.latency.probed(f.latency)
		return
	}
	c.failures += f.failures
	if c.failures >= fall {
		c.report.Health = registry.Unhealthy
		c.report.Reason, c.report.Message = explain(f.err, c.url)
	}
	how := answered
	if f.undialled {
		how = unreached
	}
	if c.trouble != how {
		c.trouble, c.since = how, c.started
	}
	c.due = c.started.Add(c.retry())
	// A probe that took long has already waited; still pause, so that two never run back to back.
	if soonest := time.Now().Add(firstRetry); missed || c.due.Before(soonest) {
		c.due = soonest
	}
}

// retry is the time from the start of a probe that failed to the next.
func (c *claim) retry() time.Duration {
	pause, share := firstRetry, dialShare
	if c.trouble == answered {
		pause, share = max(pause, c.started.Sub(c.since)/retryFraction), probeShare
	}
	return min(max(pause, time.Duration(c.target.prober.failing[c.trouble].Load())*share/oneMore), lastRetry)
}

// tell reports what is known, if it is not what was reported last.
func (c *claim) tell() {
	c.report.Slow = c.slow.Load() && c.report.Health == registry.Healthy
	if c.target.key.server && c.failures > 0 && c.report == c.told {
		return // what was known may be over: whoever gave a hint doubts on
	}
	lost := c.restate.Swap(false)
	if c.report.Health == registry.Unprobed || (c.report == c.told && !lost) {
		return
	}
	if was := c.told; was.Health != c.report.Health || was.Slow != c.report.Slow {
		c.logChange()
	}
	c.told = c.report
	c.healthy.Store(c.report.Health == registry.Healthy)
	c.series.set(c.report)
	c.target.prober.config.Report(c.report)
}

func (c *claim) logChange() {
	log := c.target.prober.log.With("apiservice", c.name, "endpoint", c.target.key.address)
	switch {
	case c.report.Health == registry.Unhealthy:
		log.Warn("endpoint is unhealthy", "reason", c.report.Reason, "err", c.report.Message)
	case c.report.Slow:
		log.Warn("endpoint is slow beside its peers")
	default:
		log.Info("endpoint is healthy")
	}
}
