package check

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Exchange is one request and its result, as its client saw it.
type Exchange struct {
	// ID is the request's unique name, which it carries.
	ID string
	// Class is the kind of request, as the summary counts it.
	Class string
	// Scopes are what it depends on, the nearest first. They find the fault that explains its
	// failure.
	Scopes []string
	// Group is the API group whose backends must answer it, or empty for the local apiserver.
	Group string
	// Version is the requested version of Group.
	Version string
	// User and Groups are the caller, or empty if the answer does not name the caller.
	User   string
	Groups []string
	// Write marks a request that changes something. Sum is the hash of its body.
	Write bool
	Sum   string
	// Watch marks a watch: Body is nil, and Garbled describes what was wrong with an event.
	Watch bool
	// Want is the expected status, or zero for any 2xx.
	Want int
	// Begun and Ended are when the client began to send it and when it knew the end.
	Begun, Ended time.Time
	// Code is the answer's status, or zero without an answer.
	Code int
	// Err is how the answer was cut off, or empty if it ended as it should.
	Err string
	// GaveUp says that the client gave up waiting: for an answer, or for an event.
	GaveUp bool
	// RetryAfter says that the client was asked to retry.
	RetryAfter bool
	// Head and Body are the receipts in the answer's header and body, or nil.
	Head, Body *Receipt
	// Garbled describes what is wrong with the rest of the body, or is empty.
	Garbled string
	// Text is the beginning of an answer without a receipt.
	Text string
}

// Receipt is what a server says about itself and the request that it answers.
type Receipt struct {
	// ID is the name that the request carried.
	ID string `json:"id"`
	// Server is the one that answers, and GroupVersion what it serves.
	Server       string `json:"server"`
	GroupVersion string `json:"groupVersion"`
	// User and Groups are the caller, as the server received them.
	User   string   `json:"user"`
	Groups []string `json:"groups"`
	// Leaked names a credential that should not have reached the server, or is empty.
	Leaked string `json:"leaked,omitempty"`
	// Seq numbers the events of a watch, from 1. It is zero in other answers.
	Seq int `json:"seq,omitempty"`
}

// ok reports whether the client got the expected answer.
func (x *Exchange) ok() bool {
	if x.Err != "" || x.GaveUp {
		return false
	}
	if x.Want != 0 {
		return x.Code == x.Want
	}
	return x.Code/100 == 2
}

// refused reports whether the answer blames the client. 429 does not.
func (x *Exchange) refused() bool {
	return x.Err == "" && x.Code/100 == 4 && x.Code != http.StatusTooManyRequests && x.Code != x.Want
}

// late reports whether a failure may be due to time alone: the client gave up, was cut off, or got
// a 5xx or 429. Other 4xx have nothing to do with time.
func (x *Exchange) late() bool {
	return x.GaveUp || x.Err != "" || x.Code/100 == 5 || x.Code == http.StatusTooManyRequests
}

// lacks reports whether the body of a success lacks the receipt that proves its effect.
func (x *Exchange) lacks() bool {
	return x.ok() && x.Want == 0 && (x.Group != "" || x.User != "") && x.Body == nil
}

// since returns the later of the request's beginning and d before its end.
func (x *Exchange) since(d time.Duration) time.Time {
	if last := x.Ended.Add(-d); last.After(x.Begun) {
		return last
	}
	return x.Begun
}

// nearest returns the scopes in the order in which they may explain a failure. Without an answer
// the connection to the door comes first.
func (x *Exchange) nearest() []string {
	scopes := slices.Clone(x.Scopes)
	if x.Code == 0 {
		slices.SortStableFunc(scopes, func(a, b string) int {
			return cmp.Compare(strings.Index(b, "door:"), strings.Index(a, "door:"))
		})
	}
	return scopes
}

// how names the kind of a failure.
func (x *Exchange) how() string {
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
