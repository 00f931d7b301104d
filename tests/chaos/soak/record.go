package soak

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// exchange is one request and its result, as its client saw it.
type exchange struct {
	ID             string    // its unique name, which it carries
	Class          string    // as the summary counts it
	Scopes         []string  // what it depends on, the nearest first: they find the fault that explains its failure
	Group, Version string    // the API group whose backends must answer it; empty for the local apiserver
	User           string    // the caller; empty if the answer does not name the caller
	Groups         []string  // the caller's
	Sum            string    // the hash of its body, if it is a write
	Watch          bool      // Body is nil, and Garbled describes what was wrong with an event
	Want           int       // the expected status; zero: any 2xx
	Begun, Ended   time.Time // when the client began to send it, and when it knew the end
	Code           int       // the answer's status; zero without an answer
	Err            string    // how the answer was cut off; empty if it ended as it should
	GaveUp         bool      // the client gave up waiting: for an answer, or for an event
	RetryAfter     bool      // the client was asked to retry
	Head, Body     *receipt  // in the answer's header and body, or nil
	Garbled        string    // what is wrong with the rest of the body
	Text           string    // the beginning of an answer without a receipt
}

// receipt is what a server says about itself and the request that it answers.
type receipt struct {
	ID           string   `json:"id"` // the name that the request carried
	Server       string   `json:"server"`
	GroupVersion string   `json:"groupVersion"` // what the server serves
	User         string   `json:"user"`         // the caller, as the server received it
	Groups       []string `json:"groups"`
	Leaked       string   `json:"leaked,omitempty"` // a credential that should not have reached the server
	Seq          int      `json:"seq,omitempty"`    // the number of a watch's event, from 1
}

// ok reports whether the client got the expected answer.
func (x *exchange) ok() bool {
	return x.Err == "" && !x.GaveUp && (x.Want == 0 && x.Code/100 == 2 || x.Want != 0 && x.Code == x.Want)
}

// late reports whether a failure may be due to time alone: the client gave up, was cut off, or got
// a 5xx or 429. Other 4xx have nothing to do with time, and blame the client.
func (x *exchange) late() bool {
	return x.GaveUp || x.Err != "" || x.Code/100 == 5 || x.Code == http.StatusTooManyRequests
}

// lacks reports whether the body of a success lacks the receipt that proves its effect.
func (x *exchange) lacks() bool {
	return x.ok() && x.Want == 0 && (x.Group != "" || x.User != "") && x.Body == nil
}

// since returns the later of the request's beginning and d before its end.
func (x *exchange) since(d time.Duration) time.Time {
	return slices.MaxFunc([]time.Time{x.Begun, x.Ended.Add(-d)}, time.Time.Compare)
}

// how names the kind of a failure.
func (x *exchange) how() string {
	switch {
	case x.GaveUp:
		return "silence"
	case x.Err != "" && x.Code != 0:
		return fmt.Sprintf("%d, then cut", x.Code)
	case x.Err != "":
		return "connection"
	}
	return fmt.Sprint(x.Code)
}

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

// span is a time; until is zero while it lasts.
type span struct{ from, until time.Time }

// meets reports whether any moment between begun and ended is in the span.
func (s span) meets(begun, ended time.Time) bool {
	return !s.from.After(ended) && (s.until.IsZero() || begun.Before(s.until))
}

// window is the time in which a fault may have effects: from before it is made until recovery.
type window struct {
	fault fault
	span  // guarded by the checker's mu
}

// open begins a window; the returned function ends it.
func (c *checker) open(f fault) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &window{fault: f, span: span{from: time.Now()}}
	c.windows = append(c.windows, w)
	c.countLocked("faults", f.Kind)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		w.until = time.Now()
	}
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
	case x.lacks(), x.ok() && x.Garbled != "":
		fits = func(f *fault) bool { return f.Lies }
	case x.ok():
		return nil
	case !x.late() && x.Code/100 == 4:
		fits = func(f *fault) bool { return slices.Contains(f.Refusals, x.Code) }
	}
	from := x.Begun
	if x.Watch { // what was repaired earlier did not end it. 30 s: twice as long as a client waits for an event
		from = x.since(30 * time.Second)
	}
	for _, weak := range []bool{false, true} {
		for _, scope := range x.Scopes {
			for _, w := range slices.Backward(c.windows) {
				if w.fault.Weak == weak && w.meets(from, x.Ended) && slices.Contains(w.fault.Scopes, scope) && fits(&w.fault) {
					return &w.fault
				}
			}
		}
	}
	return nil
}

// may permits or forbids server to receive requests for group that begin from now on.
func (c *checker) may(group, server string, allowed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [2]string{group, server}
	list := c.servers[key]
	n := len(list)
	switch open := n > 0 && list[n-1].until.IsZero(); {
	case allowed && !open:
		c.servers[key] = append(list, span{from: time.Now()})
	case !allowed && open:
		list[n-1].until = time.Now()
	}
}

// allowedLocked reports whether server was allowed to receive x at any moment.
func (c *checker) allowedLocked(x *exchange, server string) bool {
	return slices.ContainsFunc(c.servers[[2]string{x.Group, server}], func(s span) bool { return s.meets(x.Begun, x.Ended) })
}
