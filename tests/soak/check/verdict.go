package check

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// Invariant is a rule that must hold whatever is broken.
type Invariant string

// The invariants.
const (
	// RightBackend: a request is answered by a server that its APIService named.
	RightBackend Invariant = "no wrong backend"
	// RightIdentity: a server receives the caller's identity, and nothing that changes it.
	RightIdentity Invariant = "no wrong identity"
	// OwnAnswer: bodies arrive complete and belong to their request, in both directions.
	OwnAnswer Invariant = "bodies are their request's own"
	// WrittenOnce: no write is executed twice, and no client is asked to retry an executed one.
	WrittenOnce Invariant = "no write executed twice"
	// Effect: what is acknowledged has happened.
	Effect Invariant = "no 2xx without its effect"
	// ExplicitEnd: the client of an unacknowledged write gets an error.
	ExplicitEnd Invariant = "a cut write ends in an explicit error"
	// Explained: what fails depends on something that is broken at the time.
	Explained Invariant = "no failure without a fault"
	// Watches: events arrive in order, and no watch ends within one.
	Watches Invariant = "watches end cleanly or go on"
	// Converges: verdicts and table are right again soon after a repair.
	Converges Invariant = "verdicts converge"
	// NothingLeft: goroutines, descriptors and memory are released.
	NothingLeft Invariant = "nothing is left over"
)

func invariants() []Invariant {
	return []Invariant{RightBackend, RightIdentity, OwnAnswer, WrittenOnce, Effect, ExplicitEnd, Explained, Watches, Converges, NothingLeft}
}

// Outcome is how often an invariant was checked and how often it did not hold.
type Outcome struct {
	// Checked is the number of checks, Violated that of failed ones.
	Checked, Violated int
	// Excused counts failed checks while the machine stood still. They are not violations.
	Excused int
}

// Violation is a failed check of an invariant.
type Violation struct {
	// Invariant is the broken rule.
	Invariant Invariant
	// What describes what happened.
	What string
}

func (c *Checker) testLocked(i Invariant, ok bool, format string, args ...any) {
	c.invariants[i].Checked++
	if !ok {
		c.violateLocked(i, format, args...)
	}
}

func (c *Checker) violateLocked(i Invariant, format string, args ...any) {
	c.invariants[i].Violated++
	what := fmt.Sprintf(format, args...)
	c.cfg.Journal.Write("VIOLATION", "invariant", i, "what", what)
	if len(c.violations) < 1000 { // enough to read; all are counted, and in the journal
		c.violations = append(c.violations, Violation{i, what})
	}
}

// timely is testLocked for lateness: a failed check is excused if the machine stood still between
// the two moments.
func (c *Checker) timely(from, to time.Time) func(i Invariant, ok bool, format string, args ...any) {
	return func(i Invariant, ok bool, format string, args ...any) {
		still := c.clock.Excuses(from, to)
		if ok || still == 0 {
			c.testLocked(i, ok, format, args...)
			return
		}
		c.invariants[i].Checked++
		c.invariants[i].Excused++
		what := fmt.Sprintf("the machine stood still for %s: ", still.Round(time.Millisecond)) + fmt.Sprintf(format, args...)
		c.cfg.Journal.Write("EXCUSED", "invariant", i, "milliseconds", still.Milliseconds(), "what", what)
		if len(c.excused) < 1000 {
			c.excused = append(c.excused, Violation{i, what})
		}
	}
}

// Violations returns those found so far, at most a thousand.
func (c *Checker) Violations() []Violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.violations)
}

// Outcome returns the result for an invariant so far.
func (c *Checker) Outcome(i Invariant) Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.invariants[i]
}

// Report writes the summary.
func (c *Checker) Report(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	c.reportFaults(w)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reportRequestsLocked(w)
	c.reportInvariantsLocked(w)
	return w.Flush()
}

func (c *Checker) reportFaults(w io.Writer) {
	type sum struct {
		n, blamed int
		open      time.Duration
	}
	c.windows.mu.Lock()
	defer c.windows.mu.Unlock()
	kinds := map[string]sum{}
	for _, x := range c.windows.all {
		k := kinds[x.Fault.Kind]
		end := x.closed
		if end.IsZero() {
			end = time.Now()
		}
		kinds[x.Fault.Kind] = sum{k.n + 1, k.blamed + x.blamed, k.open + end.Sub(x.opened)}
	}
	_, _ = fmt.Fprintf(w, "\nfault\tinjected\tseconds open\tfailures explained\n")
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[kind]
		_, _ = fmt.Fprintf(w, "%s\t%d\t%.0f\t%d\n", kind, k.n, k.open.Seconds(), k.blamed)
	}
	_, _ = fmt.Fprintf(w, "all\t%d\n", len(c.windows.all))
}

func (c *Checker) reportRequestsLocked(w io.Writer) {
	_, _ = fmt.Fprintf(w, "\nrequests\tsent\tas wanted\tfailed\n")
	var all tally
	for _, class := range slices.Sorted(maps.Keys(c.classes)) {
		t := c.classes[class]
		all = tally{all.sent + t.sent, all.ok + t.ok, all.failed + t.failed}
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", class, t.sent, t.ok, t.failed)
	}
	_, _ = fmt.Fprintf(w, "all\t%d\t%d\t%d\n\nfailed while\thow\tclass\trequests\n", all.sent, all.ok, all.failed)
	for _, f := range slices.SortedFunc(maps.Keys(c.failures), func(a, b failure) int {
		return cmp.Or(cmp.Compare(a.fault, b.fault), cmp.Compare(a.how, b.how), cmp.Compare(a.class, b.class))
	}) {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", f.fault, f.how, f.class, c.failures[f])
	}
	var executed, cut int
	for _, x := range c.writes {
		if x.ended && !x.acknowledged {
			cut++
			executed += min(x.executed, 1)
		}
	}
	_, _ = fmt.Fprintf(w, "\nwrites\t%d\nnot acknowledged\t%d\nof those executed\t%d\n", len(c.writes), cut, executed)
}

func (c *Checker) reportInvariantsLocked(w io.Writer) {
	if n := len(c.settling); n > 0 {
		slices.Sort(c.settling)
		at := func(p float64) time.Duration {
			return c.settling[min(int(p*float64(n)), n-1)].Round(10 * time.Millisecond)
		}
		_, _ = fmt.Fprintf(w, "\nconvergence after a repair\tmedian %s\tp90 %s\tp99 %s\tlongest %s\n", at(0.5), at(0.9), at(0.99), at(1))
	}
	n, all, longest := c.clock.Sum()
	_, _ = fmt.Fprintf(w, "\nmachine stood still\t%d times\t%s in all\t%s at most\n", n, all.Round(time.Millisecond), longest.Round(time.Millisecond))
	_, _ = fmt.Fprintf(w, "\ninvariant\tchecked\tviolated\tlate while the machine stood still\n")
	for _, i := range invariants() {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", i, c.invariants[i].Checked, c.invariants[i].Violated, c.invariants[i].Excused)
	}
	tellFirst(w, "VIOLATION of", c.violations)
	tellFirst(w, "late", c.excused)
}

// tellFirst writes the first few of each invariant: the rest is in the journal.
func tellFirst(w io.Writer, what string, list []Violation) {
	const most = 4
	printed := map[Invariant]int{}
	for _, v := range list {
		if printed[v.Invariant]++; printed[v.Invariant] <= most {
			_, _ = fmt.Fprintf(w, "\n%s %q: %.600s", what, v.Invariant, v.What)
		}
	}
}
