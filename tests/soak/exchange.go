package soak

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
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
	Write          bool      // it changes something
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
	if x.Err != "" || x.GaveUp {
		return false
	}
	if x.Want != 0 {
		return x.Code == x.Want
	}
	return x.Code/100 == 2
}

// refused reports whether the answer blames the client. 429 does not.
func (x *exchange) refused() bool {
	return x.Err == "" && x.Code/100 == 4 && x.Code != http.StatusTooManyRequests && x.Code != x.Want
}

// late reports whether a failure may be due to time alone: the client gave up, was cut off, or got
// a 5xx or 429. Other 4xx have nothing to do with time.
func (x *exchange) late() bool {
	return x.GaveUp || x.Err != "" || x.Code/100 == 5 || x.Code == http.StatusTooManyRequests
}

// lacks reports whether the body of a success lacks the receipt that proves its effect.
func (x *exchange) lacks() bool {
	return x.ok() && x.Want == 0 && (x.Group != "" || x.User != "") && x.Body == nil
}

// since returns the later of the request's beginning and d before its end.
func (x *exchange) since(d time.Duration) time.Time {
	if last := x.Ended.Add(-d); last.After(x.Begun) {
		return last
	}
	return x.Begun
}

// nearest returns the scopes in the order in which they may explain a failure. Without an answer
// the connection to the door comes first.
func (x *exchange) nearest() []string {
	scopes := slices.Clone(x.Scopes)
	if x.Code == 0 {
		slices.SortStableFunc(scopes, func(a, b string) int {
			return cmp.Compare(strings.Index(b, "door:"), strings.Index(a, "door:"))
		})
	}
	return scopes
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
