package soak

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
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

func invariants() []invariant {
	return []invariant{rightBackend, rightIdentity, ownAnswer, writtenOnce, effect, explicitEnd, explained, rightWatches, converges, nothingLeft}
}

// outcome is how often an invariant was checked and did not hold. Excused are failed checks while
// the machine stood still.
type outcome struct{ checked, violated, excused int }

// violation is a failed check of an invariant.
type violation struct {
	rule invariant
	what string
}

const enough = 1000 // violations to read; all are counted, and in the journal

func (c *checker) testLocked(i invariant, ok bool, format string, args ...any) {
	c.outcomes[i].checked++
	if !ok {
		c.violateLocked(i, format, args...)
	}
}

func (c *checker) violateLocked(i invariant, format string, args ...any) {
	c.outcomes[i].violated++
	v := violation{i, fmt.Sprintf(format, args...)}
	c.journal.Info("VIOLATION", "invariant", i, "what", v.what)
	if len(c.violations) < enough {
		c.violations = append(c.violations, v)
	}
}

// timelyLocked is testLocked for lateness: a failed check is excused if the machine stood still
// between the two moments.
func (c *checker) timelyLocked(from, to time.Time) func(i invariant, ok bool, format string, args ...any) {
	return func(i invariant, ok bool, format string, args ...any) {
		still := c.clock.Excuses(from, to)
		if ok || still == 0 {
			c.testLocked(i, ok, format, args...)
			return
		}
		c.outcomes[i].checked++
		c.outcomes[i].excused++
		v := violation{i, fmt.Sprintf("the machine stood still for %s: ", still.Round(time.Millisecond)) + fmt.Sprintf(format, args...)}
		c.journal.Info("EXCUSED", "invariant", i, "what", v.what)
		if len(c.excused) < enough {
			c.excused = append(c.excused, v)
		}
	}
}

// found returns those found so far, at most a thousand.
func (c *checker) found() []violation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.violations)
}

// report writes the summary.
func (c *checker) report(out io.Writer) error {
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
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", i, c.outcomes[i].checked, c.outcomes[i].violated, c.outcomes[i].excused)
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
func first(w io.Writer, what string, list []violation) {
	const most = 4
	printed := map[invariant]int{}
	for _, v := range list {
		if printed[v.rule]++; printed[v.rule] <= most {
			_, _ = fmt.Fprintf(w, "\n%s %q: %.600s", what, v.rule, v.what)
		}
	}
}
