package check

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/clock"
)

// Config is what a Checker needs. The zero value will do.
type Config struct {
	// History is which servers may answer. Nil: none may.
	History *History
	// Journal is told of every failure and violation. Nil: nobody is.
	Journal *Journal
}

// Checker finds out whether the account adds up.
type Checker struct {
	cfg     Config
	windows windows
	clock   clock.Clock
	began   time.Time

	mu         sync.Mutex // guards what follows
	writes     map[string]*write
	classes    map[string]*tally
	failures   map[failure]int
	invariants map[Invariant]*Outcome
	violations []Violation
	excused    []Violation
	settling   []time.Duration // how long verdicts took to converge
}

// write is what is known of a write.
type write struct {
	want         Exchange // as it was begun
	executed     int
	ended        bool
	acknowledged bool // with 2xx
	retryAfter   bool // the client was told to try again
}

type tally struct{ sent, ok, failed int }

type failure struct{ class, fault, how string }

// New makes a Checker of an empty account.
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

// KeepTime finds out when the machine stands still, until ctx ends. What is late then is told
// apart.
func (c *Checker) KeepTime(ctx context.Context) { c.clock.Run(ctx) }

// Begin enters a write that is about to be sent. Nothing may execute it before.
func (c *Checker) Begin(x Exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes[x.ID] = &write{want: x}
}

// Executed enters what a server did. The server says so before it answers.
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

// End enters a request that has ended, other than a watch.
func (c *Checker) End(x Exchange) {
	explained := c.explain(&x, nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(&x, explained)
	if x.Write {
		c.writeLocked(&x)
	}
}

// explain finds the window for a failure; nil for a success, too.
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

// receiptsLocked compares what the answer says of itself with what was asked.
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

// unauthenticatedLocked looks at those who must be refused: an answer meant for somebody is worse
// than a failure.
func (c *Checker) unauthenticatedLocked(x *Exchange) {
	if x.Want >= 400 {
		c.testLocked(RightIdentity, x.Code/100 != 2, "%s %s got %d, want %d: %s", x.Class, x.ID, x.Code, x.Want, x.Text)
	}
}

// writeLocked has the last word on a write whose end the client knows.
func (c *Checker) writeLocked(x *Exchange) {
	w := c.writes[x.ID]
	if w == nil {
		return // it was never begun: refused before it could be sent
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

// Settle looks for the effects of deferred writes: all that have been executed are entered, and
// which says which writes are meant.
func (c *Checker) Settle(which func(id string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, w := range c.writes {
		if w.want.Deferred && w.ended && w.acknowledged && which(id) {
			c.testLocked(Effect, w.executed > 0, "%s %s was acknowledged and left nothing", w.want.Class, id)
		}
	}
}

// EndWatch enters a watch that has ended.
func (c *Checker) EndWatch(w Watch) {
	var explained *Window
	if !w.ok() || w.Partial || w.Stalled || w.Wrong != "" {
		// What was broken and repaired while it went on has nothing to do with its end. 30 s: twice
		// as long as a client waits for an event.
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
		return // it never began
	}
	lied := explained != nil && explained.Fault.Lies
	c.testLocked(Watches, w.Wrong == "" || lied, "%s %s: event %d: %s", w.Class, w.ID, w.Events+1, w.Wrong)
	c.testLocked(Watches, !w.Partial || w.Err != "" || explained != nil, "%s %s ended in the middle of event %d as if it were its end", w.Class, w.ID, w.Events+1)
	c.timely(w.critical())(Watches, !w.Stalled || explained != nil, "%s %s got no more events after %d, while nothing was broken", w.Class, w.ID, w.Events)
}

// Converged enters how long what was broken took to be well again after its repair. Within says
// whether that was in time, what names it.
func (c *Checker) Converged(what string, took time.Duration, within bool, missing string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settling = append(c.settling, took)
	now := time.Now()
	c.timely(now.Add(-took), now)(Converges, within, "%s: after %s still not well: %s", what, took.Round(time.Millisecond), missing)
}

// Left enters what a process holds at the end, and how much it may.
func (c *Checker) Left(what string, holds, most float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.testLocked(NothingLeft, holds <= most, "%s: %.0f, at most %.0f", what, holds, most)
}

// Must enters anything else that an invariant asks for.
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
