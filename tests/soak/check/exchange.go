package check

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Exchange is one request and what became of it, as its client saw it.
type Exchange struct {
	// ID is the request's own name, which it carried along.
	ID string
	// Class is the kind of request, as the summary counts it.
	Class string
	// Scopes are what it depends on, the nearest first: they find the fault that explains its
	// failure.
	Scopes []string
	// Group is whose backends must answer it. Empty: the local apiserver.
	Group string
	// Version is the version of Group that was asked for.
	Version string
	// User and Groups are who asked. Empty: the answer does not tell.
	User   string
	Groups []string
	// Write says that it changes something, and Sum is the hash of its body.
	Write bool
	Sum   string
	// Deferred says that the effect of a write is looked for later (Checker.Settle), since the
	// server does not tell when it acts.
	Deferred bool
	// Want is the status that is right. Zero: any of 2xx.
	Want int
	// Begun and Ended are when the client began to send it and when it knew the end.
	Begun, Ended time.Time
	// Code is the answer's status. Zero: there was none.
	Code int
	// Err is how it was cut. Empty: the answer has the end that it ought to have.
	Err string
	// GaveUp says that the client ended it because nothing came.
	GaveUp bool
	// RetryAfter says that the client was told to try again.
	RetryAfter bool
	// Head and Body are the receipts in the answer's header and in its body. Nil: there was none.
	Head, Body *Receipt
	// Garbled says what is wrong with the rest of the body, if something is.
	Garbled string
	// Text is the beginning of an answer without a receipt.
	Text string
}

// Receipt is what a server says about the request that it answers: who it is, and what arrived.
type Receipt struct {
	// ID is the name that the request carried.
	ID string `json:"id"`
	// Server is who answers, GroupVersion as what.
	Server       string `json:"server"`
	GroupVersion string `json:"groupVersion"`
	// User and Groups are who asked, as the server was told.
	User   string   `json:"user"`
	Groups []string `json:"groups"`
	// Leaked names a credential that should not have reached the server. Empty: none did.
	Leaked string `json:"leaked,omitempty"`
	// Seq counts the events of a watch, from 1. Zero: it is none.
	Seq int `json:"seq,omitempty"`
}

// Execution is a write that a server has carried out.
type Execution struct {
	Receipt

	// Sum is the hash of the body that it has read.
	Sum string
}

// Watch is a watch that has ended.
type Watch struct {
	// Exchange is its request. Body is nil, and Err is how it was cut.
	Exchange
	// Events is how many have come, all in order.
	Events int
	// Partial says that the last one was not whole.
	Partial bool
	// Stalled says that the client ended it because no more events came.
	Stalled bool
	// Wrong says what was wrong with an event, if something was.
	Wrong string
}

func (r *Receipt) same(o *Receipt) bool {
	return r.ID == o.ID && r.Server == o.Server && r.GroupVersion == o.GroupVersion && r.User == o.User && slices.Equal(r.Groups, o.Groups)
}

// ok says that the client has got what it asked for.
func (x *Exchange) ok() bool {
	if x.Err != "" || x.GaveUp {
		return false
	}
	if x.Want != 0 {
		return x.Code == x.Want
	}
	return x.Code/100 == 2
}

// refused says that the client was told to be at fault itself. 429 says nothing of the kind.
func (x *Exchange) refused() bool {
	return x.Err == "" && x.Code/100 == 4 && x.Code != http.StatusTooManyRequests && x.Code != x.Want
}

// late says that a failure may be one of time alone: nothing came in time, and everybody said so. A
// client that is told to be at fault itself is told so in time.
func (x *Exchange) late() bool {
	return x.GaveUp || x.Err != "" || x.Code/100 == 5 || x.Code == http.StatusTooManyRequests
}

// critical is the time in which a failure came about: all of it for a client that has waited for
// nothing, and the end of what went well for long. 10 s: as long as any request may take.
func (x *Exchange) critical() (from, to time.Time) {
	if end := x.Ended.Add(-10 * time.Second); !x.GaveUp && end.After(x.Begun) {
		return end, x.Ended
	}
	return x.Begun, x.Ended
}

// nearest are the scopes in the order in which they are asked for an explanation. Without an answer
// it is the last given one's connection that has ended.
func (x *Exchange) nearest() []string {
	scopes := slices.Clone(x.Scopes)
	if x.Code == 0 {
		slices.SortStableFunc(scopes, func(a, b string) int {
			return cmp.Compare(strings.Index(b, "door:"), strings.Index(a, "door:"))
		})
	}
	return scopes
}
