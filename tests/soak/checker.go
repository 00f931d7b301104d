package soak

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/clock"
)

// checker keeps what clients requested and received, what backends did, and what was broken on
// purpose and when. It verifies the invariants on these records.
//
// It knows nothing of Fairlead or of how faults are made. Its only time limit is how long the
// machine must stand still to excuse lateness. It can therefore be tested with invented records:
// its tests contain every kind of violation, and it must find each. All methods are safe for
// concurrent use. It keeps a record per write and per fault, for the whole run.
type checker struct {
	journal *slog.Logger
	clock   clock.Clock

	mu         sync.Mutex // guards the fields below
	windows    []*window  // in the order of their beginnings
	servers    map[[2]string][]span
	writes     map[string]*write
	requests   map[string]int // :: class → sent
	failures   map[[3]string]int
	outcomes   map[invariant]*outcome
	violations []violation
	excused    []violation
	settling   []time.Duration // how long convergence took
}

// write is what is known of a write request.
type write struct {
	want       exchange // as it began
	executed   int
	cut        bool // it has ended without a 2xx
	retryAfter bool // the client was asked to retry
}

// newChecker makes a checker without records. The journal gets every failure and violation.
func newChecker(journal *slog.Logger) *checker {
	c := &checker{
		journal: journal, servers: map[[2]string][]span{}, writes: map[string]*write{},
		requests: map[string]int{}, failures: map[[3]string]int{}, outcomes: map[invariant]*outcome{},
	}
	c.clock.Tell = func(d time.Duration) { journal.Info("stood still", "milliseconds", d.Milliseconds()) }
	for _, i := range invariants() {
		c.outcomes[i] = &outcome{}
	}
	return c
}

// keepTime detects until ctx ends when the machine stands still. What is late then is reported
// separately.
func (c *checker) keepTime(ctx context.Context) { c.clock.Run(ctx) }

// begin records a write that is about to be sent. It may not be executed before.
func (c *checker) begin(x exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes[x.ID] = &write{want: x}
}

// executed records a write that a server executed, and the hash of the body that it read. The
// server calls it before it answers.
func (c *checker) executed(r receipt, sum string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writes[r.ID]
	if w == nil {
		c.violateLocked(ownAnswer, "%s executed %q, which nobody has asked for", r.Server, r.ID)
		return
	}
	w.executed++
	c.testLocked(writtenOnce, w.executed == 1, "%s executed %s for the %d. time", r.Server, r.ID, w.executed)
	c.testLocked(writtenOnce, !w.retryAfter, "%s executed %s, whose client was told to try again", r.Server, r.ID)
	c.identityLocked(&w.want, &r)
	c.testLocked(ownAnswer, sum == w.want.Sum, "%s executed %s with a body that its client did not send", r.Server, r.ID)
}

// end records a request that has ended.
func (c *checker) end(x exchange) {
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
func (c *checker) receiptsLocked(x *exchange, fault *fault) {
	for _, r := range []*receipt{x.Head, x.Body} {
		if r == nil {
			continue
		}
		if x.Group != "" {
			c.testLocked(rightBackend, r.GroupVersion == x.Group+"/"+x.Version && c.allowedLocked(x, r.Server),
				"%s %s for %s/%s was answered by %s as %s", x.Class, x.ID, x.Group, x.Version, r.Server, r.GroupVersion)
			c.testLocked(ownAnswer, r.ID == x.ID, "%s %s got the answer to %s", x.Class, x.ID, r.ID)
		}
		c.identityLocked(x, r)
	}
	if x.Head != nil && x.Body != nil {
		c.testLocked(ownAnswer, x.Head.Server == x.Body.Server, "%s: a header of %s, a body of %s", x.ID, x.Head.Server, x.Body.Server)
	}
	if !x.ok() {
		return
	}
	lied := fault != nil && fault.Lies
	c.testLocked(effect, !x.lacks() || lied, "%s %s: %d without a receipt: %q", x.Class, x.ID, x.Code, x.Text)
	of := ownAnswer
	if x.Watch {
		of = rightWatches
	}
	c.testLocked(of, x.Garbled == "" || lied, "%s %s: %d with a body that is not its own: %s", x.Class, x.ID, x.Code, x.Garbled)
}

func (c *checker) identityLocked(x *exchange, r *receipt) {
	if x.User != "" {
		c.testLocked(rightIdentity, r.User == x.User && slices.Equal(r.Groups, x.Groups) && r.Leaked == "",
			"%s %s of %s %q reached %s as %s %q %s", x.Class, x.ID, x.User, x.Groups, r.Server, r.User, r.Groups, r.Leaked)
	}
}

// failedLocked checks a failure. The success of a request that must be refused is worse.
func (c *checker) failedLocked(x *exchange, fault *fault) {
	if x.Want >= 400 {
		c.testLocked(rightIdentity, x.Code/100 != 2, "%s %s got %d, want %d: %s", x.Class, x.ID, x.Code, x.Want, x.Text)
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
	test(explained, fault != nil, "%s %s failed while nothing was broken that it depends on (%s, %s): %s %s %.300s",
		x.Class, x.ID, x.Ended.Sub(x.Begun).Round(time.Millisecond), x.Scopes, x.how(), x.Err, x.Text)
}

// writtenLocked checks a write whose end the client knows.
func (c *checker) writtenLocked(x *exchange, w *write) {
	if x.ok() {
		c.testLocked(effect, w.executed > 0, "%s %s was acknowledged with %d and never executed", x.Class, x.ID, x.Code)
		return
	}
	w.cut, w.retryAfter = true, x.RetryAfter && x.Code >= 400
	c.testLocked(explicitEnd, x.Err != "" || x.Code >= 400, "%s %s ended with %d and no error: %q", x.Class, x.ID, x.Code, x.Text)
	c.testLocked(writtenOnce, !w.retryAfter || w.executed == 0, "%s was executed, and its client told to try again (%d)", x.ID, x.Code)
}

// converged records how long recovery took after a repair. within says whether that was in time; if
// not, missing names what has not recovered.
func (c *checker) converged(what string, took time.Duration, within bool, missing string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settling = append(c.settling, took)
	now := time.Now()
	c.timelyLocked(now.Add(-took), now)(converges, within, "%s: after %s still not well: %s", what, took.Round(time.Millisecond), missing)
}

// must records any other check of an invariant.
func (c *checker) must(i invariant, ok bool, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.testLocked(i, ok, format, args...)
}
