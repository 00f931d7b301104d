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
	// Watches: events arrive in order, and none is another's.
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

const enough = 1000 // violations to read; all are counted, and in the journal

func (c *Checker) testLocked(i Invariant, ok bool, format string, args ...any) {
	c.outcomes[i].Checked++
	if !ok {
		c.violateLocked(i, format, args...)
	}
}

func (c *Checker) violateLocked(i Invariant, format string, args ...any) {
	c.outcomes[i].Violated++
	v := Violation{i, fmt.Sprintf(format, args...)}
	c.journal.Info("VIOLATION", "invariant", i, "what", v.What)
	if len(c.violations) < enough {
		c.violations = append(c.violations, v)
	}
}

// timelyLocked is testLocked for lateness: a failed check is excused if the machine stood still
// between the two moments.
func (c *Checker) timelyLocked(from, to time.Time) func(i Invariant, ok bool, format string, args ...any) {
	return func(i Invariant, ok bool, format string, args ...any) {
		still := c.clock.Excuses(from, to)
		if ok || still == 0 {
			c.testLocked(i, ok, format, args...)
			return
		}
		c.outcomes[i].Checked++
		c.outcomes[i].Excused++
		v := Violation{i, fmt.Sprintf("the machine stood still for %s: ", still.Round(time.Millisecond)) + fmt.Sprintf(format, args...)}
		c.journal.Info("EXCUSED", "invariant", i, "what", v.What)
		if len(c.excused) < enough {
			c.excused = append(c.excused, v)
		}
	}
}

// Violations returns those found so far, at most a thousand.
func (c *Checker) Violations() []Violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.violations)
}

// Report writes the summary.
func (c *Checker) Report(out io.Writer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	count(w, "requests", c.requests)
	injected := map[string]int{}
	for _, x := range c.windows {
		injected[x.fault.Kind]++
	}
	count(w, "faults", injected)
	failed := map[string]int{}
	for f, n := range c.failures {
		failed[fmt.Sprintf("%s\t%s\t%s", f[0], f[1], f[2])] += n
	}
	count(w, "failed while\thow\tclass", failed)
	var executed, cut int
	for _, x := range c.writes {
		if x.cut {
			cut++
			executed += min(x.executed, 1)
		}
	}
	_, _ = fmt.Fprintf(w, "\nwrites\t%d\nnot acknowledged\t%d\nof those executed\t%d\n", len(c.writes), cut, executed)
	if n := len(c.settling); n > 0 {
		slices.Sort(c.settling)
		at := func(p float64) time.Duration {
			return c.settling[min(int(p*float64(n)), n-1)].Round(10 * time.Millisecond)
		}
		_, _ = fmt.Fprintf(w, "\nconvergence after a repair\tmedian %s\tp90 %s\tp99 %s\tlongest %s\n", at(0.5), at(0.9), at(0.99), at(1))
	}
	n, all, longest := c.clock.Sum()
	_, _ = fmt.Fprintf(w, "\nmachine stood still\t%d times\t%s in all\t%s at most\n", n, all, longest)
	_, _ = fmt.Fprintf(w, "\ninvariant\tchecked\tviolated\tlate while the machine stood still\n")
	for _, i := range invariants() {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", i, c.outcomes[i].Checked, c.outcomes[i].Violated, c.outcomes[i].Excused)
	}
	first(w, "VIOLATION of", c.violations)
	first(w, "late", c.excused)
	return w.Flush()
}

// count writes how often each line occurred, the most frequent first.
func count(w io.Writer, title string, lines map[string]int) {
	_, _ = fmt.Fprintf(w, "\n%s\n", title)
	all := 0
	for _, line := range slices.SortedFunc(maps.Keys(lines), func(a, b string) int {
		return cmp.Or(cmp.Compare(lines[b], lines[a]), cmp.Compare(a, b))
	}) {
		all += lines[line]
		_, _ = fmt.Fprintf(w, "%s\t%d\n", line, lines[line])
	}
	_, _ = fmt.Fprintf(w, "all\t%d\n", all)
}

// first writes the first few of each invariant: the rest is in the journal.
func first(w io.Writer, what string, list []Violation) {
	const most = 4
	printed := map[Invariant]int{}
	for _, v := range list {
		if printed[v.Invariant]++; printed[v.Invariant] <= most {
			_, _ = fmt.Fprintf(w, "\n%s %q: %.600s", what, v.Invariant, v.What)
		}
	}
}
