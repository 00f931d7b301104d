// Package check keeps the records of a soak: what its clients requested and received, what its
// backends did, and what was broken on purpose and when. It reports contradictions.
//
// It knows nothing of Fairlead or of how faults are made. Its only time limit is how long the
// machine must stand still to excuse lateness. It can therefore be tested with invented records:
// its tests contain every kind of violation, and it must find each. All methods are safe for
// concurrent use. It keeps a record per write and per fault, for the whole run.
package check

import (
	"slices"
	"sync"
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
	// Fault is what is broken.
	Fault Fault

	c              *Checker
	opened, closed time.Time // closed is zero while open; guarded by c.windows.mu
	blamed         int       // failures that it explains; guarded by c.windows.mu
}

// windows are all windows, in the order of their beginnings.
type windows struct {
	mu  sync.Mutex // guards all, and the fields of each that say so
	all []*Window
}

// Open begins a window.
func (c *Checker) Open(f Fault) *Window {
	w := &Window{Fault: f, c: c, opened: time.Now()}
	c.windows.mu.Lock()
	defer c.windows.mu.Unlock()
	c.windows.all = append(c.windows.all, w)
	return w
}

// Close ends a window.
func (w *Window) Close() {
	w.c.windows.mu.Lock()
	defer w.c.windows.mu.Unlock()
	w.closed = time.Now()
}

// blame finds the window that explains a failure between two moments: of those open then, the
// latest for the first scope that has any, and weak ones last. Without one it returns nil. A fits
// that is not nil may reject windows.
func (ws *windows) blame(scopes []string, from, to time.Time, fits func(*Window) bool) *Window {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, weak := range []bool{false, true} {
		for _, scope := range scopes {
			for _, w := range slices.Backward(ws.all) {
				ended := !w.closed.IsZero() && w.closed.Before(from)
				if w.Fault.Weak == weak && !ended && !w.opened.After(to) && slices.Contains(w.Fault.Scopes, scope) && (fits == nil || fits(w)) {
					w.blamed++
					return w
				}
			}
		}
	}
	return nil
}

// isOpen reports whether a window of scope is open now.
func (ws *windows) isOpen(scope string) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return slices.ContainsFunc(ws.all, func(w *Window) bool { return w.closed.IsZero() && slices.Contains(w.Fault.Scopes, scope) })
}

// Disturbed reports whether something is broken now that may affect scope.
func (c *Checker) Disturbed(scope string) bool { return c.windows.isOpen(scope) }
