// Package check keeps the account of a soak: what its clients asked and were told, what its
// backends did, what was broken on purpose and when. It says where the account does not add up.
//
// It knows nothing of Fairlead or of how faults are made, and of time limits only how long the
// machine must have stood still to excuse what was late, so that it can be fed an invented story:
// its tests tell it of every violation there is, and it must find each. All methods may be called
// at any time from any goroutine. It keeps a record per write and per fault, for the whole run.
package check

import (
	"slices"
	"sync"
	"time"
)

// Fault is one thing that is broken on purpose.
type Fault struct {
	// Kind is the way in which it is broken, as the summary counts it.
	Kind string
	// Target is what is broken, for the journal.
	Target string
	// Scopes are what may suffer from it: a failure is explained by a fault that has a scope in
	// common with the request. Nil: nothing may.
	Scopes []string
	// Lies says that a backend makes up answers, so that an answer without a receipt is not
	// Fairlead's invention.
	Lies bool
	// Weak says that it should be felt by few or by nobody: it is blamed when nothing else can be.
	Weak bool
	// Refusals are the statuses of 4xx that it causes. Any other fault is no reason to tell a
	// client that it is at fault itself.
	Refusals []int
	// Silent says that a process which can answer nothing is part of it: a client may wait without
	// end.
	Silent bool
}

// Window is the time in which a fault may be felt: from before it is made until what is broken
// works again. The Checker opens it.
type Window struct {
	// Fault is what is wrong in it.
	Fault Fault

	c              *Checker
	opened, closed time.Time // closed is zero while it is open; guarded by c.windows.mu
	blamed         int       // failures that it explains; guarded as closed
}

// windows are all there have been, in the order of their beginnings.
type windows struct {
	mu  sync.Mutex // guards all, and what is said so in each
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

// blame finds the window that explains a failure between two moments: of those that were open then,
// the latest of the first scope that has any, weak ones last. Nil: nothing explains it. fits may
// refuse windows; nil refuses none.
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

// Disturbed reports whether something that scope may suffer from is broken now.
func (c *Checker) Disturbed(scope string) bool { return c.windows.isOpen(scope) }
