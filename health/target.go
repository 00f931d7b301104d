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
	// lightChecks is how many light checks the time between two probes holds room for, the probe included: at most 3 s pass (12 s / 4)
	// before something asks, so that an endpoint that hangs is out within 3 + 0.5 + 5.25 s, well under the promised 12.
	lightChecks = 4
	// alarmGap is the least time between probes that alarms ask for. It doubles up to the interval each time an alarm of the same source proves
	// false: live traffic that fails for reasons of its own must not make us hammer an endpoint that answers, nor make us doubt what we see
	// ourselves.
	alarmGap = 250 * time.Millisecond
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
	claims atomic.Pointer[[]*claim]
	lost   atomic.Bool   // the watched connection has ended
	wake   chan struct{} // one slot, never closed: full means that a poke is already waiting

	answers chan answer // of rounds

	// state
	rounds  sync.WaitGroup
	failing [troubles]int // its claims that fail, by how
	started time.Time     // of the last round of all that do not fail
	due     time.Time     // of the next one
	light   time.Time     // of the next light check; zero: none
	rest    time.Duration // between light checks
	turn    int           // of the claims, in light checks
	at      time.Time     // when something is due
	// silent: a light check got no answer.
	silent bool
	// lostGap is the least time from a round to one that such an alarm asks for.
	lostGap time.Duration
	// watch is a connection on which a claim passed, the last one, left open. Nil: none.
	watch *http.ClientConn
}

// answer is what a round has found out about a claim.
type answer struct {
	claim *claim
	finding
}

func newTarget(p *Prober, k key) *target {
	return &target{prober: p, key: k, members: map[*claim]struct{}{}, wake: make(chan struct{}, 1), answers: make(chan answer), lostGap: alarmGap}
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
	t.step(ctx)
	for {
		timer.Reset(max(time.Until(t.at), atOnce))
		select {
		case a := <-t.answers:
			t.take(a)
			continue
		case <-timer.C:
		case <-t.wake:
		case <-ctx.Done():
			return
		}
		t.step(ctx)
	}
}

// step tells what has changed, begins a round of the claims that are due, if any, or a light check.
func (t *target) step(ctx context.Context) {
	now := time.Now()
	next := now.Add(time.Hour)
	all, suspicious := true, false
	var failing [troubles]int
	var asked []*claim
	for _, c := range *t.claims.Load() {
		c.tell()
		failing[c.trouble]++
		if c.asking {
			continue
		}
		switch at, doubted := c.next(); {
		case now.Before(at):
			next, all = earlier(next, at), all && c.failures > 0
		default:
			asked, suspicious = append(asked, c), suspicious || doubted
		}
	}
	if t.suffer(failing); failing[none] == 0 {
		t.unwatch()
	}
	if !now.Before(t.due) || all && len(asked) > 0 {
		t.begin(now)
	}
	switch {
	case len(asked) > 0:
		t.ask(ctx, now, asked, suspicious)
	case !t.light.IsZero() && !now.Before(t.light):
		t.check(ctx)
	}
	t.at = earlier(next, t.due)
	if !t.light.IsZero() {
		t.at = earlier(t.at, t.light)
	}
}

// begin notes that all that do not fail are asked for now.
func (t *target) begin(now time.Time) {
	pause := time.Duration((1 - jitter + 2*jitter*rand.Float64()) * float64(t.key.interval)) //nolint:gosec // nobody gains by guessing when a probe comes
	t.started, t.due, t.rest = now, now.Add(pause), pause/lightChecks
	t.light = time.Time{}
	t.lostGap = t.wider(t.lostGap, t.lost.Swap(false))
	t.silent = false
}

func (t *target) ask(ctx context.Context, now time.Time, asked []*claim, suspicious bool) {
	for _, c := range asked {
		c.begin(now)
	}
	r := &round{target: t, apiService: asked[0].name, after: hedgeAfter, stalled: make(chan struct{})}
	if suspicious {
		r.after = hedgeSuspicious
	}
	t.rounds.Go(func() { r.run(ctx, asked) })
}

// answer hands over what a round has found out.
func (t *target) answer(ctx context.Context, a answer) {
	select {
	case t.answers <- a:
	case <-ctx.Done():
		closeConn(a.conn)
	}
}

func (t *target) take(a answer) {
	if a.claim.gone.Load() {
		closeConn(a.conn)
		return
	}
	a.claim.take(a.finding)
	switch {
	case a.err != nil:
		t.lostGap = alarmGap
		t.at = earlier(t.at, a.claim.due)
	case a.conn != nil:
		t.keep(a.conn)
		t.at = earlier(t.at, t.light)
	}
	a.claim.tell()
}

// wider is the next gap of a source of alarms. Until a probe fails they are taken to be false.
func (t *target) wider(gap time.Duration, alarmed bool) time.Duration {
	if alarmed {
		return min(2*gap, t.key.interval)
	}
	return alarmGap
}

// suffer takes down how many claims fail now.
func (t *target) suffer(now [troubles]int) {
	for how, n := range now {
		t.prober.failing[how].Add(int64(n - t.failing[how]))
	}
	t.failing = now
}
