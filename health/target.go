package health

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/latest"
)

const (
	// defaultInterval is the time between probes of a healthy endpoint whose Policy names none. kube-aggregator resyncs every 30 s with five
	// requests at once; this is as many a minute, spread.
	defaultInterval = 10 * time.Second
	// jitter keeps the probes of endpoints that came together from staying together.
	jitter = 0.2
	// lightChecks is how many light checks the time between two probes holds room for, the probe included: at most 3 s pass (12 s / 4)
	// before something asks, so that an endpoint that hangs is out within 3 + 0.5 + 5.25 s, well under the promised 12.
	lightChecks = 4
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
	// dialShare and probeShare stretch the pause where many fail alike, to as many times that as there are: 4,000
	// redials a second at some 50 µs, 200 probes at a millisecond (the handshake), a fifth of a processor each.
	// 400 endpoints that refuse are asked every 100 ms, 10,000 every 2.5 s.
	dialShare  = 250 * time.Microsecond
	probeShare = 5 * time.Millisecond
	// alarmGap is the least time between probes that alarms ask for. It doubles up to the interval each time an alarm of the same source proves
	// false: live traffic that fails for reasons of its own must not make us hammer an endpoint that answers, nor make us doubt what we see
	// ourselves.
	alarmGap = 250 * time.Millisecond
)

// target is one endpoint of one APIService. The fields below state belong to its goroutine.
type target struct {
	prober *Prober
	key    key
	url    string
	server bool // it is asked whether it is ready, rather than for a group-version
	cancel context.CancelFunc
	series endpointSeries
	log    *slog.Logger

	// Notes from others, each followed by a poke.
	interval atomic.Int64
	hinted   atomic.Bool // live traffic could not reach it
	lost     atomic.Bool // the watched connection has ended
	renewed  atomic.Bool
	slow     atomic.Bool
	restate  atomic.Bool
	healthy  atomic.Bool   // a note to others: the last report said Healthy
	wake     chan struct{} // one slot, never closed: full means that a poke is already waiting
	latency  latency

	// state
	report   registry.Report // what is known now; Unprobed: nothing yet
	told     registry.Report // last one sent
	failures int             // probes failed in a row
	trouble  trouble         // how they failed
	since    time.Time       // when that began: the start of the first probe that failed so
	started  time.Time       // of the last probe; zero: never probed
	due      time.Time       // of the next probe
	light    time.Time       // of the next light check; zero: none
	rest     time.Duration   // between light checks
	// silent: a light check got no answer.
	silent bool
	// hintGap and lostGap are the least times from a probe to one that such an alarm asks for.
	hintGap, lostGap time.Duration
	// watch is the connection of the last probe, left open. Nil: none.
	watch *http.ClientConn
}

// trouble is how an endpoint fails.
type trouble uint8

const (
	none      trouble = iota
	unreached         // not even the dial succeeds
	answered          // by a fault
	troubles
)

func newTarget(p *Prober, k key, e *registry.Entry, cancel context.CancelFunc) *target {
	t := &target{
		prober: p, key: k, url: probeURL(e, k.address), server: e.GroupVersion.Empty(), cancel: cancel, series: p.metrics.endpoint(k),
		log:  p.log.With("apiservice", k.name, "endpoint", k.address),
		wake: make(chan struct{}, 1), hintGap: alarmGap, lostGap: alarmGap,
		report: registry.Report{Name: k.name, Backend: k.backend, Address: k.address},
	}
	t.interval.Store(int64(interval(e)))
	return t
}

func interval(e *registry.Entry) time.Duration {
	return cmp.Or(e.Policy.ProbeInterval, defaultInterval)
}

// follow takes over what a newer table says of the endpoint.
func (t *target) follow(e *registry.Entry, ep *registry.Endpoint) {
	if d := int64(interval(e)); t.interval.Swap(d) != d {
		t.poke()
	}
	// The table has lost what was reported: the endpoint was gone for a table that we did not see.
	if ep.Health == registry.Unprobed && !t.restate.Swap(true) {
		t.poke()
	}
}

// alarm asks for a probe soon. source is the target's hinted or lost.
func (t *target) alarm(source *atomic.Bool) {
	if !source.Swap(true) {
		t.poke()
	}
}

func (t *target) poke() { latest.Wake(t.wake) }

// atOnce is not zero: under the race detector Go 1.26.8 crashes in maybeRunChan when a timer of a synctest bubble is
// due as it is selected on.
const atOnce = time.Nanosecond

func (t *target) run(ctx context.Context) {
	defer t.unwatch()
	defer t.suffer(none)
	timer := time.NewTimer(time.Hour) // set before it is waited for
	defer timer.Stop()
	for {
		t.step(ctx)
		if ctx.Err() != nil {
			return
		}
		t.tell()
		timer.Reset(max(time.Until(t.next()), atOnce))
		select {
		case <-timer.C:
		case <-t.wake:
		case <-ctx.Done():
			return
		}
	}
}

// step does the one thing that is due, if any.
func (t *target) step(ctx context.Context) {
	if latest := t.started.Add(t.pause(1 + jitter)); t.failures == 0 && t.due.After(latest) {
		t.due = latest // a shorter interval applies to the wait that has begun
	}
	now := time.Now()
	switch {
	case !now.Before(t.due):
		_, doubted := t.doubt()
		t.probe(ctx, doubted)
	case t.doubtDue(now):
		t.probe(ctx, true)
	case !t.light.IsZero() && !now.Before(t.light):
		t.check(ctx)
	}
}

// next is when something is due.
func (t *target) next() time.Time {
	at := t.due
	if a, ok := t.doubt(); ok && a.Before(at) {
		at = a
	}
	if !t.light.IsZero() && t.light.Before(at) {
		at = t.light
	}
	return at
}

// doubt reports whether an alarm is to be followed up, and when. An endpoint that fails is being asked again anyway, and an alarm there says nothing new; it is
// cleared by the next probe. A new trust may heal it, and is followed up even then.
func (t *target) doubt() (at time.Time, ok bool) {
	gap := time.Duration(-1)
	consider := func(alarmed bool, g time.Duration) {
		if alarmed && (gap < 0 || g < gap) {
			gap = g
		}
	}
	consider(t.renewed.Load(), alarmGap)
	if t.failures == 0 {
		consider(t.hinted.Load(), t.hintGap)
		consider(t.lost.Load(), t.lostGap)
		consider(t.silent, alarmGap) // light checks are far apart, and patient
	}
	return t.started.Add(gap), gap >= 0
}

func (t *target) doubtDue(now time.Time) bool {
	at, ok := t.doubt()
	return ok && !now.Before(at)
}

// probe asks the endpoint on fresh connections and draws the conclusions.
func (t *target) probe(ctx context.Context, suspicious bool) {
	// Cleared before it starts: an alarm that comes while it runs may be about something newer than what it sees.
	hinted, lost := t.hinted.Swap(false), t.lost.Swap(false)
	t.renewed.Store(false)
	t.silent = false
	t.started = time.Now()
	if hinted && t.server {
		t.restate.Store(true) // whoever gave the hint doubts the server until it is told, though it is what was known
	}
	o := t.round(ctx, suspicious)
	if ctx.Err() != nil {
		closeConn(o.conn)
		return
	}
	if o.err == nil {
		t.hintGap, t.lostGap = t.wider(t.hintGap, hinted), t.wider(t.lostGap, lost)
		t.passed(o)
		return
	}
	t.failed(o)
}

// wider is the next gap of a source of alarms, after a probe that passed.
func (t *target) wider(gap time.Duration, alarmed bool) time.Duration {
	if alarmed {
		return min(2*gap, time.Duration(t.interval.Load())) // falsely
	}
	return alarmGap
}

func (t *target) passed(o outcome) {
	t.failures = 0
	t.suffer(none)
	t.report.Health, t.report.Reason, t.report.Message = registry.Healthy, "", ""
	pause := t.pause(1 - jitter + 2*jitter*rand.Float64()) //nolint:gosec // nobody gains by guessing when a probe comes
	t.due = t.started.Add(pause)
	t.rest = pause / lightChecks
	t.latency.probed(o.latency)
	t.keep(o.conn)
}

// pause is the time from one probe that passes to the next.
func (t *target) pause(factor float64) time.Duration {
	return time.Duration(factor * float64(t.interval.Load()))
}

func (t *target) failed(o outcome) {
	t.unwatch()
	t.failures += o.failures
	t.hintGap, t.lostGap = alarmGap, alarmGap
	if t.failures >= fall {
		t.report.Health = registry.Unhealthy
		t.report.Reason, t.report.Message = explain(o.err, t.url)
	}
	if o.undialled {
		t.suffer(unreached)
	} else {
		t.suffer(answered)
	}
	t.due = t.started.Add(t.retry())
	// A probe that took long has already waited; still pause, so that two never run back to back.
	if soonest := time.Now().Add(firstRetry); t.due.Before(soonest) {
		t.due = soonest
	}
}

// suffer takes down how the endpoint fails now, and since when.
func (t *target) suffer(how trouble) {
	if t.trouble == how {
		return
	}
	t.prober.failing[t.trouble].Add(-1)
	t.prober.failing[how].Add(1)
	t.trouble, t.since = how, t.started
}

// retry is the time from the start of a probe that failed to the next.
func (t *target) retry() time.Duration {
	pause, share := firstRetry, dialShare
	if t.trouble == answered {
		pause, share = max(pause, t.started.Sub(t.since)/retryFraction), probeShare
	}
	return min(max(pause, time.Duration(t.prober.failing[t.trouble].Load())*share), lastRetry)
}

// tell reports what is known, if it is not what was reported last.
func (t *target) tell() {
	t.report.Slow = t.slow.Load() && t.report.Health == registry.Healthy
	if t.server && t.failures > 0 && t.report == t.told {
		return // what was known may be over: whoever gave a hint doubts on
	}
	lost := t.restate.Swap(false)
	if t.report.Health == registry.Unprobed || (t.report == t.told && !lost) {
		return
	}
	if was := t.told; was.Health != t.report.Health || was.Slow != t.report.Slow {
		t.logChange()
	}
	t.told = t.report
	t.healthy.Store(t.report.Health == registry.Healthy)
	t.series.set(t.report)
	t.prober.config.Report(t.report)
}

func (t *target) logChange() {
	switch {
	case t.report.Health == registry.Unhealthy:
		t.log.Warn("endpoint is unhealthy", "reason", t.report.Reason, "err", t.report.Message)
	case t.report.Slow:
		t.log.Warn("endpoint is slow beside its peers")
	default:
		t.log.Info("endpoint is healthy")
	}
}
