// Package check keeps the records of a soak: what its clients requested and received, what its
// backends did, and what was broken on purpose and when. It reports contradictions.
//
// It knows nothing of Fairlead or of how faults are made. Its only time limit is how long the
// machine must stand still to excuse lateness. It can therefore be tested with invented records:
// its tests contain every kind of violation, and it must find each. All methods are safe for
// concurrent use. It keeps a record per write and per fault, for the whole run.
package check

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/clock"
)

// Checker verifies the invariants on the recorded requests, executions and faults.
type Checker struct {
	journal *slog.Logger
	clock   clock.Clock

	mu         sync.Mutex // guards the fields below
	windows    []*Window  // in the order of their beginnings
	servers    map[[2]string][]span
	writes     map[string]*write
	requests   map[string]int // :: class → sent
	failures   map[[3]string]int
	outcomes   map[Invariant]*Outcome
	violations []Violation
	excused    []Violation
	settling   []time.Duration // how long convergence took
}

// write is what is known of a write request.
type write struct {
	want       Exchange // as it began
	executed   int
	cut        bool // it has ended without a 2xx
	retryAfter bool // the client was asked to retry
}

// New makes a Checker without records. The journal gets every failure and violation.
func New(journal *slog.Logger) *Checker {
	c := &Checker{
		journal: journal, servers: map[[2]string][]span{}, writes: map[string]*write{},
		requests: map[string]int{}, failures: map[[3]string]int{}, outcomes: map[Invariant]*Outcome{},
	}
	c.clock.Tell = func(d time.Duration) { journal.Info("stood still", "milliseconds", d.Milliseconds()) }
	for _, i := range invariants() {
		c.outcomes[i] = &Outcome{}
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

// Executed records a write that a server executed, and the hash of the body that it read. The
// server calls it before it answers.
func (c *Checker) Executed(r Receipt, sum string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writes[r.ID]
	if w == nil {
		c.violateLocked(OwnAnswer, "%s executed %q, which nobody has asked for", r.Server, r.ID)
		return
	}
	w.executed++
	c.testLocked(WrittenOnce, w.executed == 1, "%s executed %s for the %d. time", r.Server, r.ID, w.executed)
	c.testLocked(WrittenOnce, !w.retryAfter, "%s executed %s, whose client was told to try again", r.Server, r.ID)
	c.identityLocked(&w.want, &r)
	c.testLocked(OwnAnswer, sum == w.want.Sum, "%s executed %s with a body that its client did not send", r.Server, r.ID)
}

// End records a request that has ended.
func (c *Checker) End(x Exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fault := c.explainLocked(&x)
	c.requests[x.Class]++
	c.receiptsLocked(&x, fault)
	if !x.ok() {
		c.failedLocked(&x, fault)
	}
	if w := c.writes[x.ID]; w != nil {
		c.writtenLocked(&x, w)
	}
}

// receiptsLocked compares the receipts in the answer with the request.
func (c *Checker) receiptsLocked(x *Exchange, fault *Fault) {
	for _, r := range []*Receipt{x.Head, x.Body} {
		if r == nil {
			continue
		}
		if x.Group != "" {
			c.testLocked(RightBackend, r.GroupVersion == x.Group+"/"+x.Version && c.allowedLocked(x, r.Server),
				"%s %s for %s/%s was answered by %s as %s", x.Class, x.ID, x.Group, x.Version, r.Server, r.GroupVersion)
			c.testLocked(OwnAnswer, r.ID == x.ID, "%s %s got the answer to %s", x.Class, x.ID, r.ID)
		}
		c.identityLocked(x, r)
	}
	if x.Head != nil && x.Body != nil {
		c.testLocked(OwnAnswer, x.Head.Server == x.Body.Server, "%s: a header of %s, a body of %s", x.ID, x.Head.Server, x.Body.Server)
	}
	if !x.ok() {
		return
	}
	lied := fault != nil && fault.Lies
	c.testLocked(Effect, !x.lacks() || lied, "%s %s: %d without a receipt: %q", x.Class, x.ID, x.Code, x.Text)
	of := OwnAnswer
	if x.Watch {
		of = Watches
	}
	c.testLocked(of, x.Garbled == "" || lied, "%s %s: %d with a body that is not its own: %s", x.Class, x.ID, x.Code, x.Garbled)
}

func (c *Checker) identityLocked(x *Exchange, r *Receipt) {
	if x.User != "" {
		c.testLocked(RightIdentity, r.User == x.User && slices.Equal(r.Groups, x.Groups) && r.Leaked == "",
			"%s %s of %s %q reached %s as %s %q %s", x.Class, x.ID, x.User, x.Groups, r.Server, r.User, r.Groups, r.Leaked)
	}
}

// failedLocked checks a failure. The success of a request that must be refused is worse.
func (c *Checker) failedLocked(x *Exchange, fault *Fault) {
	if x.Want >= 400 {
		c.testLocked(RightIdentity, x.Code/100 != 2, "%s %s got %d, want %d: %s", x.Class, x.ID, x.Code, x.Want, x.Text)
	}
	kind := "unexplained"
	if fault != nil {
		kind = fault.Kind
	}
	c.failures[[3]string{kind, x.how(), x.Class}]++
	c.journal.Info("failed", "exchange", x, "fault", kind)
	test := c.testLocked
	switch { // the time in which it came about: all of it if the client gave up, else at most as long as any request may take
	case x.GaveUp && !x.Watch:
		test = c.timelyLocked(x.Begun, x.Ended)
	case x.late():
		test = c.timelyLocked(x.since(10*time.Second), x.Ended)
	}
	test(Explained, fault != nil, "%s %s failed while nothing was broken that it depends on (%s, %s): %s %s %.300s",
		x.Class, x.ID, x.Ended.Sub(x.Begun).Round(time.Millisecond), x.Scopes, x.how(), x.Err, x.Text)
}

// writtenLocked checks a write whose end the client knows.
func (c *Checker) writtenLocked(x *Exchange, w *write) {
	if x.ok() {
		c.testLocked(Effect, w.executed > 0, "%s %s was acknowledged with %d and never executed", x.Class, x.ID, x.Code)
		return
	}
	w.cut, w.retryAfter = true, x.RetryAfter && x.Code >= 400
	c.testLocked(ExplicitEnd, x.Err != "" || x.Code >= 400, "%s %s ended with %d and no error: %q", x.Class, x.ID, x.Code, x.Text)
	c.testLocked(WrittenOnce, !w.retryAfter || w.executed == 0, "%s was executed, and its client told to try again (%d)", x.ID, x.Code)
}

// Converged records how long recovery took after a repair. within says whether that was in time; if
// not, missing names what has not recovered.
func (c *Checker) Converged(what string, took time.Duration, within bool, missing string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settling = append(c.settling, took)
	now := time.Now()
	c.timelyLocked(now.Add(-took), now)(Converges, within, "%s: after %s still not well: %s", what, took.Round(time.Millisecond), missing)
}

// Must records any other check of an invariant.
func (c *Checker) Must(i Invariant, ok bool, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.testLocked(i, ok, format, args...)
}
