// Package answer defines the JSON documents in which Fairlead describes itself. Package pages of
// cmd/fairlead makes them. kubectl-fairlead shows them without linking what they are made from.
//
// A document must be used by one goroutine at a time.
package answer

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Explanation is what happens to a request: the response to /explain.
type Explanation struct {
	// Method, Path and Verb are the request's. Verb is the method unless it is for a resource.
	Method string `json:"method"`
	Path   string `json:"path"`
	Verb   string `json:"verb"`
	// Destination is local, remote, document, page, health, or refused.
	Destination string `json:"destination"`
	// Why explains how the path leads to the destination, one step each.
	Why []string `json:"why"`
	// APIService is the entry that claims the path. Nil means none does.
	APIService *APIService `json:"apiService,omitempty"`
	// Authorization is allowed, or denied with the reason. Empty means that it is not checked here.
	Authorization string `json:"authorization,omitempty"`
	// Identity is what Fairlead asserts to the destination. Nil means nothing.
	Identity *Identity `json:"identity,omitempty"`
	// Timeout is the class of the deadline and its length.
	Timeout string `json:"timeout,omitempty"`
	// Code and Message are the response's if the request is refused here. Zero means it is not.
	Code    int    `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// Cause says why it is refused, or what is wrong although it is not. Empty means all is well.
	Cause string `json:"cause,omitempty"`
	// Advice is what to check. Empty means nothing.
	Advice string `json:"advice,omitempty"`
}

// Outcome returns Destination in words.
func (x *Explanation) Outcome() string {
	switch {
	case x.Destination == "local":
		return "forwarded to the local apiserver"
	case x.Destination == "remote" && x.APIService != nil:
		return "forwarded to " + x.APIService.Service
	case x.Destination == "document" || x.Destination == "page" || x.Destination == "health":
		return "answered by Fairlead"
	}
	return x.Destination
}

// Identity is a user as the destination sees it.
type Identity struct {
	// User, UID, Groups and Extra are the caller's.
	User   string              `json:"user"`
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
	// Headers are the added header fields, as name: value.
	Headers []string `json:"headers,omitempty"`
	// How describes the way in which the identity is passed.
	How string `json:"how"`
}

// Left returns how long a certificate is valid: whole days, or in the end hours. Zero is a dash.
func Left(now, t time.Time) string {
	switch d := t.Sub(now); {
	case t.IsZero():
		return "–"
	case d <= 0:
		return "expired"
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// soon is how long before a certificate's end it is coloured: as long as in the shipped alerts.
const soon = 7 * 24 * time.Hour

// Urgency returns the colour of that end: bad on the last day, warn if it is soon, otherwise none.
func Urgency(now, t time.Time) string {
	switch d := t.Sub(now); {
	case t.IsZero() || d >= soon:
		return ""
	case d >= 24*time.Hour:
		return "warn"
	}
	return "bad"
}

// Ago returns how long ago t was, as kubectl prints ages. Zero is a dash.
func Ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(now.Sub(t), 0))
}

// Latency formats a latency in seconds with about two digits. Zero is a dash.
func Latency(seconds float64) string {
	switch {
	case seconds <= 0:
		return "-"
	case seconds < .01:
		return fmt.Sprintf("%.1fms", seconds*1e3)
	case seconds < 1:
		return fmt.Sprintf("%.0fms", seconds*1e3)
	}
	return fmt.Sprintf("%.1fs", seconds)
}

// Rate formats a number of requests per second. Zero is a dash.
func Rate(perSecond float64) string {
	switch {
	case perSecond <= 0:
		return "-"
	case perSecond < .01:
		return "<0.01/s"
	case perSecond < .1:
		return fmt.Sprintf("%.2f/s", perSecond)
	case perSecond < 10:
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return fmt.Sprintf("%.0f/s", perSecond)
}
