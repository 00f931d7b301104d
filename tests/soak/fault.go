package soak

import (
	"slices"
	"time"
)

// fault is one thing that is broken on purpose.
type fault struct {
	Kind     string   // how it is broken, as the summary counts it
	Target   string   // what is broken, for the journal
	Scopes   []string // what may be affected: it explains a failure if it shares a scope with the request
	Lies     bool     // a backend invents answers, so an answer without a receipt is not Fairlead's invention
	Weak     bool     // it should affect few requests or none: it is blamed last
	Refusals []int    // the 4xx statuses that it causes; no other fault explains a 4xx (429 excepted)
	Silent   bool     // a process may not answer at all while it lasts: clients may wait forever
}

// window is the time in which a fault may have effects: from before it is made until recovery.
type window struct {
	fault fault
	span  // guarded by c.mu
	c     *checker
}

// span is a time; until is zero while it lasts.
type span struct{ from, until time.Time }

// meets reports whether any moment between begun and ended is in the span.
func (s span) meets(begun, ended time.Time) bool {
	return !s.from.After(ended) && (s.until.IsZero() || begun.Before(s.until))
}

// open begins a window.
func (c *checker) open(f fault) *window {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &window{fault: f, span: span{from: time.Now()}, c: c}
	c.windows = append(c.windows, w)
	return w
}

// close ends a window.
func (w *window) close() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.until = time.Now()
}

// disturbed reports whether something is broken now that may affect scope.
func (c *checker) disturbed(scope string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.windows, func(w *window) bool { return w.until.IsZero() && slices.Contains(w.fault.Scopes, scope) })
}

// explainLocked finds the fault that explains a failure, or returns nil: of those at the time, the
// latest for the first scope that has any, and weak ones last.
func (c *checker) explainLocked(x *exchange) *fault {
	fits := func(*fault) bool { return true }
	switch {
	case x.GaveUp && !x.Watch:
		fits = func(f *fault) bool { return f.Silent }
	case x.lacks(), x.Garbled != "" && x.Watch:
		fits = func(f *fault) bool { return f.Lies }
	case x.refused():
		fits = func(f *fault) bool { return slices.Contains(f.Refusals, x.Code) }
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

// allow permits server to receive requests for group from now on.
func (c *checker) allow(group, server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.servers[[2]string{group, server}]
	if n := len(list); n == 0 || !list[n-1].until.IsZero() {
		c.servers[[2]string{group, server}] = append(list, span{from: time.Now()})
	}
}

// forbid forbids server to receive requests for group that begin from now on.
func (c *checker) forbid(group, server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if list := c.servers[[2]string{group, server}]; len(list) > 0 && list[len(list)-1].until.IsZero() {
		list[len(list)-1].until = time.Now()
	}
}

// allowedLocked reports whether server was allowed to receive x at any moment.
func (c *checker) allowedLocked(x *exchange, server string) bool {
	return slices.ContainsFunc(c.servers[[2]string{x.Group, server}], func(s span) bool { return s.meets(x.Begun, x.Ended) })
}
