package soak

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/clock"
)

// invariant is a rule that must hold whatever is broken.
type invariant string

const (
	rightBackend  invariant = "no wrong backend"                      // its APIService named the server that answers
	rightIdentity invariant = "no wrong identity"                     // a server receives the caller's, and nothing that changes it
	ownAnswer     invariant = "bodies are their request's own"        // and arrive complete, in both directions
	writtenOnce   invariant = "no write executed twice"               // and no client is asked to retry an executed one
	effect        invariant = "no 2xx without its effect"             // what is acknowledged has happened
	explicitEnd   invariant = "a cut write ends in an explicit error" // the client of an unacknowledged write gets one
	explained     invariant = "no failure without a fault"            // something is broken at the time that it depends on
	rightWatches  invariant = "watches end cleanly or go on"          // events arrive in order, and none is another's
	converges     invariant = "verdicts converge"                     // and the table, soon after a repair
	nothingLeft   invariant = "nothing is left over"                  // goroutines, descriptors and memory
)

// checker keeps what clients requested and received, what backends did, and what was broken on
// purpose and when. It verifies the invariants on these records.
//
// It knows nothing of Fairlead or of how faults are made. Its only time limit is how long the
// machine must stand still to excuse lateness. It can therefore be tested with invented records:
// its tests contain every kind of violation, and it must find each. All methods are safe for
// concurrent use. It keeps a record per write and per fault, for the whole run.
type checker struct {
	journal *slog.Logger // gets every failure and violation
	clock   clock.Clock  // detects when the machine stands still: what is late then is reported separately

	mu       sync.Mutex                // guards the fields below
	windows  []*window                 // in the order of their beginnings
	servers  map[[2]string][]span      // :: group and server → when it may answer
	writes   map[string]*write         // :: ID
	counts   map[string]map[string]int // :: table of the report → line → number
	found    []violation
	settling []time.Duration // how long convergence took
}

// write is what is known of a write request.
type write struct {
	want       exchange // as it began
	executed   int
	cut        bool // it has ended without a 2xx
	retryAfter bool // the client was asked to retry
}

// violation is a failed check of an invariant, or one that is excused because the machine stood still.
type violation struct {
	rule    invariant
	what    string
	excused bool
}

func newChecker(journal *slog.Logger) *checker {
	c := &checker{journal: journal, servers: map[[2]string][]span{}, writes: map[string]*write{}, counts: map[string]map[string]int{}}
	c.clock.Tell = func(d time.Duration) { journal.Info("stood still", "milliseconds", d.Milliseconds()) }
	return c
}

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
	if c.testLocked(ownAnswer, w != nil, "%s executed %q, which nobody has asked for", r.Server, r.ID); w == nil {
		return
	}
	w.executed++
	c.testLocked(writtenOnce, w.executed == 1, "%s executed %s for the %d. time", r.Server, r.ID, w.executed)
	c.testLocked(writtenOnce, !w.retryAfter, "%s executed %s, whose client was told to try again", r.Server, r.ID)
	c.identityLocked(&w.want, &r)
	c.testLocked(ownAnswer, sum == w.want.Sum, "%s executed %s with a body that its client did not send", r.Server, r.ID)
}

func (c *checker) end(x exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fault := c.explainLocked(&x)
	c.countLocked("requests", x.Class)
	c.countLocked("requests for group", x.Group)
	c.receiptsLocked(&x, fault)
	if !x.ok() {
		c.failedLocked(&x, fault)
	}
	if w := c.writes[x.ID]; w != nil {
		c.writtenLocked(&x, w)
	}
}

// ended returns how many requests for a group (empty: all) have ended.
func (c *checker) ended(group string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for g, ended := range c.counts["requests for group"] {
		if group == "" || g == group {
			n += ended
		}
	}
	return n
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
	c.countLocked("failed while\thow\tclass", kind+"\t"+x.how()+"\t"+x.Class)
	c.journal.Info("failed", "exchange", x, "fault", kind)
	still := time.Duration(0)
	switch { // the time in which it came about: all of it if the client gave up, else at most as long as any request may take
	case x.GaveUp && !x.Watch:
		still = c.clock.Excuses(x.Begun, x.Ended)
	case x.late():
		still = c.clock.Excuses(x.since(10*time.Second), x.Ended)
	}
	c.timelyLocked(explained, fault != nil, still, "%s %s failed while nothing was broken that it depends on (%s, %s): %s %s %.300s",
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
	c.timelyLocked(converges, within, c.clock.Excuses(now.Add(-took), now), "%s: after %s still not well: %s", what, took.Round(time.Millisecond), missing)
}

// must records any other check of an invariant.
func (c *checker) must(i invariant, ok bool, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.testLocked(i, ok, format, args...)
}

func (c *checker) testLocked(i invariant, ok bool, format string, args ...any) {
	c.timelyLocked(i, ok, 0, format, args...)
}

// timelyLocked is testLocked for lateness: a failed check is excused if the machine stood still.
func (c *checker) timelyLocked(i invariant, ok bool, still time.Duration, format string, args ...any) {
	c.countLocked("checked", string(i))
	if ok {
		return
	}
	v := violation{i, fmt.Sprintf(format, args...), still > 0}
	title := "VIOLATION"
	if v.excused {
		title, v.what = "late", fmt.Sprintf("the machine stood still for %s: %s", still.Round(time.Millisecond), v.what)
	}
	c.countLocked(title, string(i))
	c.journal.Info(title, "invariant", i, "what", v.what)
	c.found = append(c.found, v)
}

func (c *checker) countLocked(table, line string) {
	if c.counts[table] == nil {
		c.counts[table] = map[string]int{}
	}
	c.counts[table][line]++
}

// violations returns what has been found so far and is not excused.
func (c *checker) violations() []violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.found), func(v violation) bool { return v.excused })
}

// report writes the summary. Of the violations it has the first few of each invariant: the rest is in the journal.
func (c *checker) report(out io.Writer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	var executed, cut int
	for _, x := range c.writes {
		if x.cut {
			cut++
			executed += min(x.executed, 1)
		}
	}
	_, _ = fmt.Fprintf(w, "writes\t%d\nnot acknowledged\t%d\nof those executed\t%d\n", len(c.writes), cut, executed)
	if n := len(c.settling); n > 0 {
		slices.Sort(c.settling)
		at := func(p float64) time.Duration {
			return c.settling[min(int(p*float64(n)), n-1)].Round(10 * time.Millisecond)
		}
		_, _ = fmt.Fprintf(w, "\nconvergence after a repair\tmedian %s\tp90 %s\tp99 %s\tlongest %s\n", at(0.5), at(0.9), at(0.99), at(1))
	}
	n, all, longest := c.clock.Sum()
	_, _ = fmt.Fprintf(w, "\nmachine stood still\t%d times\t%s in all\t%s at most\n", n, all, longest)
	for _, table := range slices.Sorted(maps.Keys(c.counts)) {
		lines, sum := c.counts[table], 0
		_, _ = fmt.Fprintf(w, "\n%s\n", table)
		for _, line := range slices.SortedFunc(maps.Keys(lines), func(a, b string) int { return cmp.Or(lines[b]-lines[a], cmp.Compare(a, b)) }) {
			sum += lines[line]
			_, _ = fmt.Fprintf(w, "%s\t%d\n", line, lines[line])
		}
		_, _ = fmt.Fprintf(w, "all\t%d\n", sum)
	}
	printed := map[violation]int{}
	for _, v := range c.found {
		kind := violation{rule: v.rule, excused: v.excused}
		if printed[kind]++; printed[kind] <= 4 {
			_, _ = fmt.Fprintf(w, "\n%q, excused %t: %.600s\n", v.rule, v.excused, v.what)
		}
	}
	return w.Flush()
}
