package health

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry"
)

const (
	// defaultInterval is the time between probes of a healthy endpoint whose Policy names none.
	// kube-aggregator resyncs every 30 s with five requests; this is as many, evenly spread.
	defaultInterval = 10 * time.Second
	jitter          = 0.2 // spreads the probes of endpoints that came at the same time
	// lightChecks is how many checks the time between two probes is divided into, the probe included: at most 4 s pass
	// (12 s / 3) before one, so a hanging endpoint is ejected within 4 + 0.5 + 5.25 s, under the promised 12.
	lightChecks = 3
	// lightTimeout is how long a light check may stay unanswered before the endpoint is probed. It decides nothing, so
	// it may be short. And it must be: the kernel sends no keep-alive while a request is under way, so a host whose
	// packets vanish may get a light check just before the 2 s after which keep-alive would have failed. It is then
	// ejected within 2 s + 0.5 s + 0.25 s + 2 s (dialTimeout), where 5 s are promised.
	lightTimeout = 500 * time.Millisecond
	// beat aligns the timers of healthy targets: waking up for each of a thousand costs more than
	// probing. The work of one beat takes some 20 ms for 2,000 endpoints.
	beat = 100 * time.Millisecond
	// alarmGap is the least time between probes caused by alarms. It doubles up to the interval each time one of the
	// same source proves false: live traffic that fails for reasons of its own must not make us hammer an endpoint.
	alarmGap = 250 * time.Millisecond
	// together is how much earlier a failing claim is probed if a round begins: half a firstRetry.
	together = firstRetry / 2
	// atOnce is not zero: under the race detector Go 1.26.8 crashes in maybeRunChan when a timer of a
	// synctest bubble is due as it is selected on.
	atOnce = time.Nanosecond
)

// key identifies a target. APIServices with one Backend and interval are probed on one connection.
type key struct {
	backend  *registry.Backend
	address  string
	interval time.Duration
	server   bool // it is probed for readiness, not for group-versions
}

// target is one endpoint of a Backend: when it is dialled, for which claims. All below state belongs to its goroutine.
type target struct {
	prober  *Prober
	key     key
	members map[*claim]struct{} // the next claims; owned by the set
	cancel  context.CancelFunc  // nil means not started; owned by the set

	// Flags set by other goroutines. Each is followed by a poke.
	claims  atomic.Pointer[[]*claim]
	hinted  atomic.Bool   // live traffic could not reach it
	lost    atomic.Bool   // the watched connection has ended
	renewed atomic.Bool   // see Prober.Renew
	wake    chan struct{} // one slot, never closed: full means that a poke is pending

	findings chan func() // findings of rounds; called by the target's goroutine

	// state
	rounds  sync.WaitGroup
	failing [troubles]int // its failing claims, by the way in which they fail
	started time.Time     // of the last round of all claims that do not fail
	due     time.Time     // of the next such round
	first   time.Time     // when the first claim is due by itself; zero means none is
	silent  bool          // a light check got no response
	old     bool          // the last claim that was probed has passed, over HTTP/1.1
	room    int           // how many concurrent requests the server last allowed. One until it has said so
	// These are the least times from a round to one that such an alarm causes, and between rounds that writers ask for.
	hintGap, lostGap, silentGap, share time.Duration

	// watch is a connection of the round that began at watched, left open after a claim passed on it. Nil means none.
	watch   *http.ClientConn
	watched time.Time
	light   time.Time     // of the next light check on it; zero means that one is under way
	rest    time.Duration // between light checks
	turn    int           // selects the claim of the next light check
}

func newTarget(p *Prober, k key) *target {
	return &target{
		prober: p, key: k, members: map[*claim]struct{}{}, wake: make(chan struct{}, 1), findings: make(chan func()),
		due: time.Now(), room: 1, hintGap: alarmGap, lostGap: alarmGap, silentGap: alarmGap,
	}
}

func (t *target) set(flag *atomic.Bool) {
	if !flag.Swap(true) {
		t.poke()
	}
}

func (t *target) poke() { latest.Wake(t.wake) }

func (t *target) run(ctx context.Context) {
	defer t.unwatch()
	defer t.countFailing([troubles]int{})
	defer t.rounds.Wait()             // ctx has ended
	timer := time.NewTimer(time.Hour) // set before each wait
	for ctx.Err() == nil {
		t.step(ctx)
		t.wait(ctx, timer)
	}
}

// wait takes the findings of rounds until something may be due.
func (t *target) wait(ctx context.Context, timer *time.Timer) {
	for {
		timer.Reset(max(time.Until(t.next()), atOnce))
		select {
		case take := <-t.findings:
			take()
			continue
		case <-timer.C:
		case <-t.wake:
		case <-ctx.Done():
		}
		return
	}
}

// next returns when something is due, from the state each time anew: no event can be forgotten.
func (t *target) next() time.Time {
	at, _ := t.dueForAll()
	at = latest.Earlier(at, t.first)
	if t.watch != nil {
		at = latest.Earlier(at, t.light)
	}
	return at
}

// dueForAll returns when all claims that do not fail are due, and whether an alarm suspects them.
func (t *target) dueForAll() (at time.Time, suspect bool) {
	at = t.due
	alarm := func(alarmed bool, gap time.Duration) {
		if alarmed {
			at, suspect = latest.Earlier(at, t.started.Add(gap)), true
		}
	}
	alarm(t.hinted.Load(), t.hintGap)
	alarm(t.lost.Load(), t.lostGap)
	alarm(t.silent, t.silentGap)
	alarm(t.renewed.Load(), max(alarmGap, t.share)) // as many as after failures
	return at, suspect
}

// step reports changes, and starts what is due: a round, or a light check.
func (t *target) step(ctx context.Context) {
	now := time.Now()
	at, suspect := t.dueForAll()
	var all, hinted, renewed bool
	if all = !now.Before(at); all {
		hinted, renewed = t.begin(now)
	}
	t.first = time.Time{}
	var failing [troubles]int
	claims := *t.claims.Load()
	for _, c := range claims {
		c.sendReport()
		failing[c.trouble]++
		c.suspect = c.suspect || all && suspect
		c.mustReport = c.mustReport || hinted
		// After an alarm a claim is probed even while a probe runs: the alarm may be newer.
		if all && (renewed || c.failures == 0) && (suspect || !c.asking) {
			c.due = latest.Earlier(c.due, now)
		}
		if !c.asking {
			t.first = latest.Earlier(t.first, c.due)
		}
	}
	if t.countFailing(failing); failing[none] == 0 {
		t.unwatch()
	}
	switch {
	case !t.first.IsZero() && !now.Before(t.first):
		t.ask(ctx, now, claims)
	case t.watch != nil && !t.light.IsZero() && !now.Before(t.light):
		t.check(ctx, now)
	}
}

// begin starts the interval of a round of all claims that do not fail, which answers the alarms.
func (t *target) begin(now time.Time) (hinted, renewed bool) {
	spread := 1 - jitter + 2*jitter*rand.Float64() //nolint:gosec // the time of a probe is no secret
	t.share = probeShare * time.Duration(len((*t.prober.index.Load())[(*t.claims.Load())[0].name]))
	pause := time.Duration(spread*float64(max(t.key.interval, t.share))) - beat
	t.started, t.due = now, t.prober.beat(now.Add(pause))
	t.rest = pause / lightChecks
	t.light = t.prober.beat(now.Add(t.rest))
	hinted, renewed = t.hinted.Swap(false), t.renewed.Swap(false)
	t.hintGap, t.lostGap = t.nextGap(t.hintGap, hinted), t.nextGap(t.lostGap, t.lost.Swap(false))
	if t.old { // its server may close idle connections within seconds: then no light check would find out that it hangs
		t.lostGap = min(t.lostGap, t.rest)
	}
	t.silentGap, t.silent = t.nextGap(t.silentGap, t.silent), false
	return hinted, renewed
}

// nextGap returns the next gap of a source of alarms. Alarms count as false until a probe fails.
func (t *target) nextGap(gap time.Duration, alarmed bool) time.Duration {
	if alarmed {
		return min(2*gap, t.key.interval)
	}
	return alarmGap
}

// ask starts a round of the claims that are due, or so soon that they need no connection for it.
func (t *target) ask(ctx context.Context, now time.Time, claims []*claim) {
	r := &round{target: t, started: now, after: hedgeAfter, room: t.room}
	var asked []*claim
	t.first = time.Time{}
	for _, c := range claims {
		switch {
		case c.asking, c.due.IsZero():
		case c.due.After(now.Add(together)):
			t.first = latest.Earlier(t.first, c.due)
		default:
			asked = append(asked, c)
			if c.suspect {
				r.after = hedgeSuspicious
			}
			c.asking, c.suspect, c.started, c.due = true, false, now, time.Time{}
		}
	}
	t.rounds.Go(func() { r.run(ctx, asked) })
}

// deliver has the target's goroutine call f, unless that goroutine has ended.
func (t *target) deliver(ctx context.Context, f func()) (delivered bool) {
	select {
	case t.findings <- f:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t *target) take(c *claim, f finding, of time.Time) {
	t.keep(f.conn, of)
	if c.gone.Load() {
		return
	}
	t.old = f.err == nil && !f.http2
	failed := c.failures > 0
	if c.take(f); c.failures > 0 && !failed { // one that failed before, or is believed, proves none right
		t.hintGap, t.lostGap, t.silentGap = alarmGap, alarmGap, alarmGap
	}
	c.sendReport()
	t.first = latest.Earlier(t.first, c.due)
}

// end takes over or closes the connections of a round that has ended.
func (t *target) end(r *round) {
	t.room = r.room
	for _, l := range r.conns {
		if l.passed.Load() && !l.ends.Load() {
			t.keep(l.conn, r.started)
		} else {
			closeConn(l.conn)
		}
	}
}

// countFailing updates the prober's weights with the number of claims that fail now.
func (t *target) countFailing(now [troubles]int) {
	weight := func(n int) int64 { return int64(min(n, 1)*(oneMore-1) + n) }
	for how, n := range now {
		if was := t.failing[how]; n != was && trouble(how) != none {
			t.prober.failing[how].add(t.key.backend, weight(n)-weight(was))
		}
	}
	t.failing = now
}

// keep takes over a connection on which a claim has passed, if its round is later than that of the watched one, and
// closes it if not. Blocked in a read, the connection sees the process die at once. The next round's connection
// replaces it. It needs no pings: between requests on it passes less time than servers' idle timeouts.
func (t *target) keep(conn *http.ClientConn, round time.Time) {
	if conn == nil {
		return
	}
	if t.watch != nil && !round.After(t.watched) {
		closeConn(conn)
		return
	}
	t.unwatch()
	if t.prober.watched.Add(1) > t.prober.most {
		t.prober.watched.Add(-1)
		closeConn(conn)
		return
	}
	t.watch, t.watched = conn, round
	t.light = t.prober.beat(time.Now().Add(t.rest))
	conn.SetStateHook(func(c *http.ClientConn) {
		if c.Err() != nil {
			t.set(&t.lost)
		}
	})
	if conn.Err() != nil { // it ended after its answer, before it was watched
		t.unwatch()
		t.set(&t.lost)
	}
}

func (t *target) unwatch() {
	if t.watch == nil {
		return
	}
	t.watch.SetStateHook(nil) // before closing: closing it ourselves is no alarm
	closeConn(t.watch)
	t.watch = nil
	t.prober.watched.Add(-1)
}

// check sends a request on the watched connection, which costs no dial and no handshake. It can only lead to a probe:
// an open connection can hide that no new one is accepted, and a hanging process keeps its own open.
func (t *target) check(ctx context.Context, now time.Time) {
	t.light = t.prober.beat(now.Add(t.rest))
	conn, c := t.watch, t.nextClaim()
	if c == nil {
		return
	}
	t.light = time.Time{}
	t.rounds.Go(func() {
		latency, err := c.check(ctx, conn)
		t.deliver(ctx, func() {
			switch {
			case t.watch != conn: // it was replaced, and closed during the request
			case err != nil:
				t.unwatch()
				t.silent = true
			default:
				c.latency.probed(latency)
				t.light = t.prober.beat(time.Now().Add(t.rest))
			}
		})
	})
}

// nextClaim returns, in rotation, one that neither fails nor is being probed. Nil means that there is none.
func (t *target) nextClaim() *claim {
	claims := *t.claims.Load()
	for range claims {
		t.turn++
		if c := claims[t.turn%len(claims)]; c.failures == 0 && !c.asking {
			return c
		}
	}
	return nil
}

func (c *claim) check(ctx context.Context, conn *http.ClientConn) (latency time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, lightTimeout)
	defer cancel()
	latency, err = c.get(ctx, conn.RoundTrip)
	return latency, cmp.Or(inTime(err, latency, lightTimeout), conn.Err())
}
