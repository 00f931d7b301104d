package check

import (
	"slices"
	"time"
)

// Fault is one thing that is broken on purpose.
type Fault struct {
	// Kind is how it is broken, as the summary counts it.
	Kind string
	// Target is what is broken, for the journal.
	Target string
	// Scopes are what may be affected: a fault explains a failure if it shares a scope with the
	// request. If nil, it explains none.
	Scopes []string
	// Lies says that a backend invents answers, so an answer without a receipt is not Fairlead's
	// invention.
	Lies bool
	// Weak says that it should affect few requests or none: it is blamed last.
	Weak bool
	// Refusals are the 4xx statuses that it causes. No other fault explains a 4xx (429 excepted).
	Refusals []int
	// Silent says that a process may not answer at all while it lasts: clients may wait forever.
	Silent bool
}

// Window is the time in which a fault may have effects: from before it is made until recovery. The
// Checker opens it.
type Window struct {
	fault Fault
	span  // guarded by c.mu
	c     *Checker
}

// span is a time; until is zero while it lasts.
type span struct{ from, until time.Time }

// meets reports whether any moment between begun and ended is in the span.
func (s span) meets(begun, ended time.Time) bool {
	return !s.from.After(ended) && (s.until.IsZero() || begun.Before(s.until))
}

// Open begins a window.
func (c *Checker) Open(f Fault) *Window {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &Window{fault: f, span: span{from: time.Now()}, c: c}
	c.windows = append(c.windows, w)
	return w
}

// Close ends a window.
func (w *Window) Close() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.until = time.Now()
}

// Disturbed reports whether something is broken now that may affect scope.
func (c *Checker) Disturbed(scope string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.windows, func(w *Window) bool { return w.until.IsZero() && slices.Contains(w.fault.Scopes, scope) })
}

// explainLocked finds the fault that explains a failure, or returns nil: of those at the time, the
// latest for the first scope that has any, and weak ones last.
func (c *Checker) explainLocked(x *Exchange) *Fault {
	fits := func(*Fault) bool { return true }
	switch {
	case x.GaveUp && !x.Watch:
		fits = func(f *Fault) bool { return f.Silent }
	case x.lacks(), x.Garbled != "" && x.Watch:
		fits = func(f *Fault) bool { return f.Lies }
	case x.refused():
		fits = func(f *Fault) bool { return slices.Contains(f.Refusals, x.Code) }
	case x.ok() && x.Garbled == "":
		return nil
	}
	from := x.Begun
	if x.Watch { // what was repaired earlier did not end it. 30 s: twice as long as a client waits for an event
		from = x.since(30 * time.Second)
	}
	for _, weak := range []bool{false, true} {
		for _, scope := range x.nearest() {
			for _, w := range slices.Backward(c.windows) {
				if w.fault.Weak == weak && w.meets(from, x.Ended) && slices.Contains(w.fault.Scopes, scope) && fits(&w.fault) {
					return &w.fault
				}
			}
		}
	}
	return nil
}

// Allow permits server to receive requests for group from now on.
func (c *Checker) Allow(group, server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.servers[[2]string{group, server}]
	if n := len(list); n == 0 || !list[n-1].until.IsZero() {
		c.servers[[2]string{group, server}] = append(list, span{from: time.Now()})
	}
}

// Forbid forbids server to receive requests for group that begin from now on.
func (c *Checker) Forbid(group, server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if list := c.servers[[2]string{group, server}]; len(list) > 0 && list[len(list)-1].until.IsZero() {
		list[len(list)-1].until = time.Now()
	}
}

// allowedLocked reports whether server was allowed to receive x at any moment.
func (c *Checker) allowedLocked(x *Exchange, server string) bool {
	return slices.ContainsFunc(c.servers[[2]string{x.Group, server}], func(s span) bool { return s.meets(x.Begun, x.Ended) })
}
