package check

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/clock"
)

// Config configures a Checker. The zero value is valid.
type Config struct {
	// History is which servers may answer. If nil, none may.
	History *History
	// Journal records every failure and violation, unless it is nil.
	Journal *Journal
}

// Checker verifies the invariants on the recorded requests, executions and faults.
type Checker struct {
	cfg     Config
	windows windows
	clock   clock.Clock
	began   time.Time

	mu         sync.Mutex // guards the fields below
	writes     map[string]*write
	classes    map[string]*tally
	failures   map[failure]int
	invariants map[Invariant]*Outcome
	violations []Violation
	excused    []Violation
	settling   []time.Duration // how long convergence took
}

// write is what is known of a write request.
type write struct {
	want         Exchange // as it began
	executed     int
	ended        bool
	acknowledged bool // with 2xx
	retryAfter   bool // the client was asked to retry
}

type tally struct{ sent, ok, failed int }

type failure struct{ class, fault, how string }

// New makes a Checker without records.
func New(cfg Config) *Checker {
	if cfg.History == nil {
		cfg.History = &History{}
	}
	c := &Checker{cfg: cfg, began: time.Now(), writes: map[string]*write{}, classes: map[string]*tally{}, failures: map[failure]int{}, invariants: map[Invariant]*Outcome{}}
	c.clock.Tell = func(d time.Duration) { cfg.Journal.Write("stood still", "milliseconds", d.Milliseconds()) }
	for _, i := range invariants() {
		c.invariants[i] = &Outcome{}
	}
	return c
}

// KeepTime detects until ctx ends when the machine stands still. What is late then is reported
// separately.
func (c *Checker) KeepTime(ctx context.Context) { c.clock.Run(ctx) }

// Begin records a write that is about to be sent. It may not be executed before.
func (c *Checker) Begin(x Exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes[x.ID] = &write{want: x}
}

// Executed records a write that a server executed. The server calls it before it answers.
func (c *Checker) Executed(e Execution) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writes[e.ID]
	if w == nil {
		c.violateLocked(OwnAnswer, "%s executed %q, which nobody has asked for", e.Server, e.ID)
		return
	}
	w.executed++
	c.testLocked(WrittenOnce, w.executed == 1, "%s executed %s, a %s, for the %d. time", e.Server, e.ID, w.want.Class, w.executed)
	c.testLocked(WrittenOnce, !w.retryAfter, "%s executed %s, a %s whose client was told to try again", e.Server, e.ID, w.want.Class)
	if e.User != "" {
		c.identityLocked(&w.want, &e.Receipt)
	}
	if w.want.Sum != "" && e.Sum != "" {
		c.testLocked(OwnAnswer, e.Sum == w.want.Sum, "%s executed %s with a body that its client did not send (%s, not %s)", e.Server, e.ID, e.Sum, w.want.Sum)
	}
}

// End records a request that has ended, other than a watch.
func (c *Checker) End(x Exchange) {
	explained := c.explain(&x, nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(&x, explained)
	if x.Write {
		c.writeLocked(&x)
	}
}

// explain finds the window for a failure, or returns nil.
func (c *Checker) explain(x *Exchange, fits func(*Window) bool) *Window {
	lying := x.ok() && x.Want == 0 && x.Group != "" && x.Body == nil
	switch {
	case x.GaveUp:
		fits = func(w *Window) bool { return w.Fault.Silent }
	case lying:
		fits = func(w *Window) bool { return w.Fault.Lies }
	case x.ok() && x.Garbled == "":
		return nil
	case x.refused():
		fits = func(w *Window) bool { return slices.Contains(w.Fault.Refusals, x.Code) }
	}
	return c.windows.blame(x.nearest(), x.Begun, x.Ended, fits)
}

func (c *Checker) endLocked(x *Exchange, explained *Window) {
	t := c.classes[x.Class]
	if t == nil {
		t = &tally{}
		c.classes[x.Class] = t
	}
	t.sent++
	c.receiptsLocked(x, explained)
	if x.ok() {
		t.ok++
		return
	}
	t.failed++
	c.unauthenticatedLocked(x)
	f := failure{class: x.Class, how: how(x), fault: "unexplained"}
	if explained != nil {
		f.fault = explained.Fault.Kind
	}
	c.failures[f]++
	c.cfg.Journal.Write("failed", "exchange", x, "fault", f.fault)
	test := c.testLocked
	if x.late() {
		test = c.timely(x.critical())
	}
	test(Explained, explained != nil, "%s %s failed while nothing was broken that it depends on: %s %s", x.Class, x.ID, f.how, x.detail())
}

// receiptsLocked compares the receipts in the answer with the request.
func (c *Checker) receiptsLocked(x *Exchange, explained *Window) {
	for _, r := range []*Receipt{x.Head, x.Body} {
		if r == nil {
			continue
		}
		if x.Group != "" {
			c.testLocked(RightBackend, r.GroupVersion == x.Group+"/"+x.Version && c.cfg.History.allowed(x.Group, r.Server, x.Begun, x.Ended),
				"%s %s for %s/%s was answered by %s as %s", x.Class, x.ID, x.Group, x.Version, r.Server, r.GroupVersion)
			c.testLocked(OwnAnswer, r.ID == x.ID, "%s %s got the answer to %s", x.Class, x.ID, r.ID)
		}
		c.identityLocked(x, r)
	}
	if x.Head != nil && x.Body != nil {
		c.testLocked(OwnAnswer, x.Head.same(x.Body), "%s %s: header %+v, body %+v", x.Class, x.ID, x.Head, x.Body)
	}
	if x.Err != "" || x.GaveUp || x.Code/100 != 2 || x.Want != 0 {
		return
	}
	lied := explained != nil && explained.Fault.Lies
	if x.Group != "" || x.User != "" {
		c.testLocked(Effect, x.Body != nil || lied, "%s %s: %d without a receipt: %q", x.Class, x.ID, x.Code, x.Text)
	}
	c.testLocked(OwnAnswer, x.Garbled == "" || lied, "%s %s: %d with a body that is not its own: %s", x.Class, x.ID, x.Code, x.Garbled)
}

func (c *Checker) identityLocked(x *Exchange, r *Receipt) {
	if x.User == "" {
		return
	}
	c.testLocked(RightIdentity, r.User == x.User && slices.Equal(r.Groups, x.Groups) && r.Leaked == "",
		"%s %s of %s %q reached %s as %s %q %s", x.Class, x.ID, x.User, x.Groups, r.Server, r.User, r.Groups, r.Leaked)
}

// unauthenticatedLocked checks requests that must be refused: a success is worse than a failure.
func (c *Checker) unauthenticatedLocked(x *Exchange) {
	if x.Want >= 400 {
		c.testLocked(RightIdentity, x.Code/100 != 2, "%s %s got %d, want %d: %s", x.Class, x.ID, x.Code, x.Want, x.Text)
	}
}

// writeLocked checks a write whose end the client knows.
func (c *Checker) writeLocked(x *Exchange) {
	w := c.writes[x.ID]
	if w == nil {
		return // it never began: it was refused before it could be sent
	}
	w.ended, w.acknowledged = true, x.ok() && x.Want == 0
	w.retryAfter = x.RetryAfter && x.Code >= 400
	if !w.acknowledged {
		c.testLocked(ExplicitEnd, x.Err != "" || x.Code >= 400 || x.Want != 0 && x.Code == x.Want, "%s %s ended with %d and no error: %q", x.Class, x.ID, x.Code, x.Text)
		c.testLocked(WrittenOnce, !w.retryAfter || w.executed == 0, "%s %s was executed, and its client told to try again (%d)", x.Class, x.ID, x.Code)
		return
	}
	if !x.Deferred {
		c.testLocked(Effect, w.executed > 0, "%s %s was acknowledged with %d and never executed", x.Class, x.ID, x.Code)
	}
}

// Settle checks the deferred writes that which selects: all that were executed must be recorded by
// now.
func (c *Checker) Settle(which func(id string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, w := range c.writes {
		if w.want.Deferred && w.ended && w.acknowledged && which(id) {
			c.testLocked(Effect, w.executed > 0, "%s %s was acknowledged and left nothing", w.want.Class, id)
		}
	}
}

// EndWatch records a watch that has ended.
func (c *Checker) EndWatch(w Watch) {
	var explained *Window
	if !w.ok() || w.Partial || w.Stalled || w.Wrong != "" {
		// What was repaired earlier did not end this watch. 30 s: twice as long as a client waits
		// for an event.
		late := w.Ended.Add(-30 * time.Second)
		if late.Before(w.Begun) {
			late = w.Begun
		}
		var fits func(*Window) bool
		switch {
		case w.Wrong != "":
			fits = func(x *Window) bool { return x.Fault.Lies }
		case w.refused():
			fits = func(x *Window) bool { return slices.Contains(x.Fault.Refusals, w.Code) }
		}
		explained = c.windows.blame(w.nearest(), late, w.Ended, fits)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(&w.Exchange, explained)
	if w.Code/100 != 2 {
		return // it never started
	}
	lied := explained != nil && explained.Fault.Lies
	c.testLocked(Watches, w.Wrong == "" || lied, "%s %s: event %d: %s", w.Class, w.ID, w.Events+1, w.Wrong)
	c.testLocked(Watches, !w.Partial || w.Err != "" || explained != nil, "%s %s ended in the middle of event %d as if it were its end", w.Class, w.ID, w.Events+1)
	c.timely(w.critical())(Watches, !w.Stalled || explained != nil, "%s %s got no more events after %d, while nothing was broken", w.Class, w.ID, w.Events)
}

// Converged records how long recovery took after a repair. within says whether that was in time; if
// not, missing names what has not recovered.
func (c *Checker) Converged(what string, took time.Duration, within bool, missing string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settling = append(c.settling, took)
	now := time.Now()
	c.timely(now.Add(-took), now)(Converges, within, "%s: after %s still not well: %s", what, took.Round(time.Millisecond), missing)
}

// Left records what a process holds at the end, and how much it may hold.
func (c *Checker) Left(what string, holds, most float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.testLocked(NothingLeft, holds <= most, "%s: %.0f, at most %.0f", what, holds, most)
}

// Must records any other check of an invariant.
func (c *Checker) Must(i Invariant, ok bool, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.testLocked(i, ok, format, args...)
}

func how(x *Exchange) string {
	switch {
	case x.GaveUp:
		return "silence"
	case x.Err != "" && x.Code != 0:
		return fmt.Sprintf("%d, then cut", x.Code)
	case x.Err != "":
		return "connection"
	}
	return fmt.Sprint(x.Code)
}

func (x *Exchange) detail() string {
	text := x.Err + " " + x.Text
	return fmt.Sprintf("(%s, %s) %.300s", x.Ended.Sub(x.Begun).Round(time.Millisecond), x.Scopes, text)
}
