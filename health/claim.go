package health

import (
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
	// 400 endpoints that refuse are asked every 100 ms, 10,000 every 2.5 s.
	dialShare  = 250 * time.Microsecond
	probeShare = 5 * time.Millisecond
)

// claim is that an endpoint serves an APIService's group-version: what it is asked for, and what was found out. Each has a verdict of its own. The fields below state
// belong to its target's goroutine; while it is asked for, what asks reads failures.
type claim struct {
	target *target
	name   string // the APIService's
	url    string
	series endpointSeries

	// Notes from others, each followed by a poke of the target.
	hinted  atomic.Bool // live traffic could not reach it
	renewed atomic.Bool
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
	due      time.Time       // of the next one while it fails, and of the first
	hintGap  time.Duration   // least time from a probe to one that a hint asks for
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
	return &claim{
		target: t, name: e.Name, url: probeURL(e, t.key.address), hintGap: alarmGap,
		series: t.prober.metrics.endpoint(e.Name, t.key.address),
		report: registry.Report{Name: e.Name, Backend: t.key.backend, Address: t.key.address},
	}
}

// follow takes over what a newer table says of the endpoint.
func (c *claim) follow(ep *registry.Endpoint) {
	// The table has lost what was reported: the endpoint was gone for a table that we did not see.
	if ep.Health == registry.Unprobed {
		c.note(&c.restate)
	}
}

// note leaves one of the claim's notes.
func (c *claim) note(n *atomic.Bool) {
	if !n.Swap(true) {
		c.target.poke()
	}
}

// next is when the claim is to be asked for, and whether that is doubted which is known of it. A claim that fails is asked for again anyway, and an alarm says nothing new
// there; it is cleared by the next probe. A new trust may heal it, and is followed up even then.
func (c *claim) next() (at time.Time, doubted bool) {
	t := c.target
	at = t.due
	if c.failures > 0 || c.started.IsZero() {
		at = c.due
	}
	doubt := func(alarmed bool, from time.Time, gap time.Duration) {
		if !alarmed {
			return
		}
		doubted = true
		at = earlier(at, from.Add(gap))
	}
	doubt(c.renewed.Load(), c.started, alarmGap)
	if c.failures == 0 {
		doubt(c.hinted.Load(), c.started, c.hintGap)
		doubt(t.lost.Load(), t.started, t.lostGap)
		doubt(t.silent, t.started, alarmGap) // light checks are far apart, and patient
	}
	return at, doubted
}

// begin clears the notes before a probe: one that comes while it is under way may be about something newer than what it sees.
func (c *claim) begin(now time.Time) {
	hinted := c.hinted.Swap(false)
	c.renewed.Store(false)
	if hinted && c.target.key.server {
		c.restate.Store(true) // whoever gave the hint doubts the server until it is told, though it is what was known
	}
	c.hintGap = c.target.wider(c.hintGap, hinted)
	c.asking, c.started = true, now
}

// take draws the conclusions of a probe.
func (c *claim) take(f finding) {
	c.asking = false
	c.series.probed(f)
	if f.err == nil {
		c.failures, c.trouble = 0, none
		c.report.Health, c.report.Reason, c.report.Message = registry.Healthy, "", ""
		c.latency.probed(f.latency)
		return
	}
	c.failures += f.failures
	c.hintGap = alarmGap
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
	if soonest := time.Now().Add(firstRetry); c.due.Before(soonest) {
		c.due = soonest
	}
}

// retry is the time from the start of a probe that failed to the next.
func (c *claim) retry() time.Duration {
	pause, share := firstRetry, dialShare
	if c.trouble == answered {
		pause, share = max(pause, c.started.Sub(c.since)/retryFraction), probeShare
	}
	return min(max(pause, time.Duration(c.target.prober.failing[c.trouble].Load())*share), lastRetry)
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

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
