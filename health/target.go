package health

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
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
	// lightChecks is how many light checks the time between two probes holds room for, the probe included: at most 4 s pass (12 s / 3)
	// before something asks, so that an endpoint that hangs is out within 4 + 0.5 + 5.25 s, under the promised 12.
	lightChecks = 3
	// beat is what targets that have nothing to fear wait for together: a process that is woken for each of a thousand spends more on waking than on asking.
	// What that brings to do at one go is some 20 ms where 2,000 endpoints are probed.
	beat = 100 * time.Millisecond
	// alarmGap is the least time between probes that alarms ask for. It doubles up to the interval each time an alarm of the same source proves
	// false: live traffic that fails for reasons of its own must not make us hammer an endpoint that answers, nor make us doubt what we see
	// ourselves.
	alarmGap = 250 * time.Millisecond
	// together is how much sooner than due a claim that fails is asked for where a round begins anyway: half a firstRetry.
	together = firstRetry / 2
)

// key names one target. APIServices with one Backend are asked for on the same connections, those with one interval.
type key struct {
	backend  *registry.Backend
	address  string
	interval time.Duration
	server   bool // it is asked whether it is ready, rather than for group-versions
}

func interval(e *registry.Entry) time.Duration {
	return cmp.Or(e.Policy.ProbeInterval, defaultInterval)
}

// target is one endpoint of a Backend: when it is dialled and what is asked for there. The fields below state belong to its goroutine.
type target struct {
	prober  *Prober
	key     key
	members map[*claim]struct{} // what claims will be; the set's own
	cancel  context.CancelFunc  // nil: not started; the set's own

	// Notes from others, each followed by a poke.
	claims  atomic.Pointer[[]*claim]
	hinted  atomic.Bool   // live traffic could not reach it
	lost    atomic.Bool   // the watched connection has ended
	renewed atomic.Bool   // something else is trusted there
	wake    chan struct{} // one slot, never closed: full means that a poke is already waiting

	news chan func() // what rounds have found out; called by the target's goroutine

	// state
	rounds  sync.WaitGroup
	failing [troubles]int // its claims that fail, by how
	started time.Time     // of the last round of all that do not fail
	due     time.Time     // of the next one
	first   time.Time     // when a claim is due by itself, at the soonest; zero: none is
	// silent: a light check got no answer.
	silent bool
	// room is for how many questions at one time the endpoint's servers had room last. One until they have said so.
	room int
	// hintGap and lostGap are the least times from a round to one that such an alarm asks for.
	hintGap, lostGap time.Duration

	// watch is a connection on which a claim passed, of the round that began at watched, left open. Nil: none.
	watch   *http.ClientConn
	watched time.Time
	light   time.Time     // of the next light check on it; zero: one is under way
	rest    time.Duration // between light checks
	turn    int           // of the claims, in light checks
}

func newTarget(p *Prober, k key) *target {
	return &target{
		prober: p, key: k, members: map[*claim]struct{}{}, wake: make(chan struct{}, 1), news: make(chan func()),
		due: time.Now(), room: 1, hintGap: alarmGap, lostGap: alarmGap,
	}
}

// note leaves one of the notes.
func (t *target) note(n *atomic.Bool) {
	if !n.Swap(true) {
		t.poke()
	}
}

func (t *target) poke() { latest.Wake(t.wake) }

// atOnce is not zero: under the race detector Go 1.26.8 crashes in maybeRunChan when a timer of a synctest bubble is
// due as it is selected on.
const atOnce = time.Nanosecond

func (t *target) run(ctx context.Context) {
	defer t.unwatch()
	defer t.suffer([troubles]int{})
	defer t.rounds.Wait()             // ctx has ended
	timer := time.NewTimer(time.Hour) // set before it is waited for
	defer timer.Stop()
	for ctx.Err() == nil {
		t.step(ctx)
		t.wait(ctx, timer)
	}
}

// wait takes what rounds find out until something may be due.
func (t *target) wait(ctx context.Context, timer *time.Timer) {
	for {
		timer.Reset(max(time.Until(t.next()), atOnce))
		select {
		case news := <-t.news:
			news()
			continue
		case <-timer.C:
		case <-t.wake:
		case <-ctx.Done():
		}
		return
	}
}

// next is when something is due. It is worked out of what is known, each time anew, so that nothing that comes can be forgotten.
func (t *target) next() time.Time {
	at, _ := t.dueForAll()
	at = earlier(at, t.first)
	if t.watch != nil {
		at = earlier(at, t.light)
	}
	return at
}

// dueForAll is when all that do not fail are to be asked for, and whether that is doubted which is known of them.
func (t *target) dueForAll() (at time.Time, doubted bool) {
	at = t.due
	doubt := func(alarmed bool, gap time.Duration) {
		if alarmed {
			at, doubted = earlier(at, t.started.Add(gap)), true
		}
	}
	doubt(t.hinted.Load(), t.hintGap)
	doubt(t.lost.Load(), t.lostGap)
	doubt(t.renewed.Load(), alarmGap)
	doubt(t.silent, alarmGap) // light checks are far apart, and patient
	return at, doubted
}

// step tells what has changed, and begins what is due: a round, or a light check.
func (t *target) step(ctx context.Context) {
	now := time.Now()
	at, doubted := t.dueForAll()
	var all, hinted, renewed bool
	if all = !now.Before(at); all {
		hinted, renewed = t.begin(now)
	}
	t.first = time.Time{}
	var failing [troubles]int
	claims := *t.claims.Load()
	for _, c := range claims {
		c.tell()
		failing[c.trouble]++
		c.doubted = c.doubted || all && doubted
		c.owed = c.owed || hinted && t.key.server
		// What is being asked for is asked for again after an alarm, which may be about something newer than what the answer says.
		if all && (renewed || c.failures == 0) && (doubted || !c.asking) {
			c.due = earlier(c.due, now)
		}
		if !c.asking {
			t.first = earlier(t.first, c.due)
		}
	}
	if t.suffer(failing); failing[none] == 0 {
		t.unwatch()
	}
	switch {
	case !t.first.IsZero() && !now.Before(t.first):
		t.ask(ctx, now, claims)
	case t.watch != nil && !t.light.IsZero() && !now.Before(t.light):
		t.check(ctx, now)
	}
}

// begin notes that all that do not fail are asked for now, which answers the alarms.
func (t *target) begin(now time.Time) (hinted, renewed bool) {
	pause := time.Duration((1-jitter+2*jitter*rand.Float64())*float64(t.key.interval)) - beat //nolint:gosec // nobody gains by guessing when a probe comes
	t.started, t.due = now, t.prober.beat(now.Add(pause))
	t.rest = pause / lightChecks
	t.light = t.prober.beat(now.Add(t.rest))
	hinted, renewed = t.hinted.Swap(false), t.renewed.Swap(false)
	t.hintGap, t.lostGap = t.wider(t.hintGap, hinted), t.wider(t.lostGap, t.lost.Swap(false))
	t.silent = false
	return hinted, renewed
}

// wider is the next gap of a source of alarms. Until a probe fails they are taken to be false.
func (t *target) wider(gap time.Duration, alarmed bool) time.Duration {
	if alarmed {
		return min(2*gap, t.key.interval)
	}
	return alarmGap
}

// ask begins a round of the claims that are due, or will be so soon that they need no connection of their own.
func (t *target) ask(ctx context.Context, now time.Time, claims []*claim) {
	r := &round{target: t, started: now, after: hedgeAfter, room: t.room}
	var asked []*claim
	t.first = time.Time{}
	for _, c := range claims {
		switch {
		case c.asking, c.due.IsZero():
		case c.due.After(now.Add(together)):
			t.first = earlier(t.first, c.due)
		default:
			asked = append(asked, c)
			if c.doubted {
				r.after = hedgeSuspicious
			}
			c.begin(now)
		}
	}
	t.rounds.Go(func() { r.run(ctx, asked) })
}

// hear has news taken by the target's goroutine, unless that has ended.
func (t *target) hear(ctx context.Context, news func()) (heard bool) {
	select {
	case t.news <- news:
		return true
	case <-ctx.Done():
		return false
	}
}

// take takes what a round has found out about a claim.
func (t *target) take(c *claim, f finding, of time.Time) {
	t.keep(f.conn, of)
	if c.gone.Load() {
		return
	}
	if f.err != nil && c.failures == 0 {
		t.hintGap, t.lostGap = alarmGap, alarmGap // what fails anyway proves no alarm right
	}
	c.take(f)
	c.tell()
	t.first = earlier(t.first, c.due)
}

// end takes the connections of a round that is over.
func (t *target) end(r *round) {
	t.room = r.room
	for _, l := range r.lines {
		if l.passed.Load() {
			t.keep(l.conn, r.started)
		} else {
			closeConn(l.conn)
		}
	}
}

// suffer takes down how many claims fail now.
func (t *target) suffer(now [troubles]int) {
	weight := func(n int) int64 { return int64(min(n, 1)*(oneMore-1) + n) }
	for how, n := range now {
		t.prober.failing[how].Add(weight(n) - weight(t.failing[how]))
	}
	t.failing = now
}

// earlier is the first of two times. Zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
