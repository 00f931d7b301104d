package proxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Clients are only asked to retry requests that no backend has executed.
func TestFrameFailures(t *testing.T) {
	for reason, want := range map[h2.Reason]struct {
		code       int32
		message    string
		retryAfter int32
	}{
		h2.ReasonNoEndpoint:  {503, "could not be reached", 1},
		h2.ReasonDial:        {503, "could not be reached", 1},
		h2.ReasonRefused:     {503, "takes no further requests", 1},
		h2.ReasonBusy:        {503, "takes no further requests", 1},
		h2.ReasonReset:       {503, "ended the connection", 0},
		h2.ReasonLost:        {503, "ended the connection", 0},
		h2.ReasonBadResponse: {502, "cannot be understood", 0},
		h2.ReasonDeadline:    {504, "did not answer", 0},
		h2.ReasonDrain:       {503, "ended the connection", 0},
		h2.ReasonClientReset: {503, "ended the connection", 0},
	} {
		var status *apierrors.StatusError
		if !errors.As(forwardError("v1.a", frameError(h2.Outcome{Reason: reason})), &status) {
			t.Fatalf("%s: no status", reason)
		}
		s, retryAfter := status.ErrStatus, int32(0)
		if s.Details != nil {
			retryAfter = s.Details.RetryAfterSeconds
		}
		if s.Code != want.code || !strings.Contains(s.Message, want.message) || retryAfter != want.retryAfter || retryAfter == 0 && s.Details != nil {
			t.Errorf("%s: %+v", reason, s)
		}
	}
}

// Clients get a code, a message, and the seconds until a retry.
func TestMessages(t *testing.T) {
	for want, err := range map[string]error{
		"503 the caller could not be authenticated, 1":                                        errAuthenticating(),
		"503 the request could not be authorized, 1":                                          errAuthorizing(),
		"500 Internal error occurred: internal error in this process, 0":                      errPanicked(),
		"405 CONNECT is not offered, 0":                                                       errConnect(),
		"413 an upgrade request cannot have a body, 0":                                        errTooLong(),
		"408 the body of the request did not come within the allotted time, 0":                errSlowBody(),
		"429 the front door is shutting down, please try again, 5":                            errShuttingDown(),
		"508 the request has come back to the Fairlead that sent it, 0":                       errLoop(),
		"429 this user has canceled too many requests, please try again later, 1":             errGivenUp(),
		"503 the table of APIServices is not complete yet, please try again, 1":               errNotReady(),
		"404 the server could not find the requested resource, 0":                             errNotFound(),
		"429 v1.a is at its request limit, please try again later, 1":                         errBusy("v1.a"),
		"502 v1.a: the backend attempted to redirect this request, which is not permitted, 0": errRedirect("v1.a"),
	} {
		var status *apierrors.StatusError
		if !errors.As(err, &status) {
			t.Errorf("%q: no status: %v", want, err)
			continue
		}
		s, retryAfter := status.ErrStatus, int32(0)
		if s.Details != nil {
			retryAfter = s.Details.RetryAfterSeconds
		}
		if got := fmt.Sprintf("%d %s, %d", s.Code, s.Message, retryAfter); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// client-go retries every answer with Retry-After: only a failure that may pass soon, before
// anything was executed, has one.
func TestRetryAfter(t *testing.T) {
	down := &registry.Entry{Name: "v1.a", Verdict: registry.Verdict{Since: time.Unix(0, 0)}}
	for name, tt := range map[string]struct {
		err  error
		want int32
	}{
		"not impersonated":   {errNotImpersonated("root", "system:masters"), 0},
		"own credential":     {errOwnCredential(), 1},
		"not authenticated":  {errAuthenticating(), 1},
		"not authorized":     {errAuthorizing(), 1},
		"not impersonating":  {forbidden(errAuthorizing()), 1},
		"forbidden":          {errForbidden(&authz.Attributes{User: &user.DefaultInfo{Name: "bob"}}, ""), 0},
		"CONNECT":            {errConnect(), 0},
		"no table":           {errNotReady(), 1},
		"draining":           {errShuttingDown(), 5},
		"loop":               {errLoop(), 0},
		"not found":          {errNotFound(), 0},
		"too long":           {errTooLong(), 0},
		"protected":          {errProtected(down), 0},
		"down for long":      {errUnavailable(down, time.Unix(10, 0)), 0},
		"down since shortly": {errUnavailable(down, time.Unix(9, 0)), 1},
		"in maintenance":     {errUnavailable(&registry.Entry{Policy: registry.Policy{Maintenance: "x"}}, time.Now()), 0},
		"redirect":           {errRedirect("v1.a"), 0},
		"busy":               {errBusy("v1.a"), 1},
		"reviews":            {errReviews(), 1},
		"slow body":          {errSlowBody(), 0},
		"given up":           {errGivenUp(), 1},
		"late":               {forwardError("v1.a", context.DeadlineExceeded), 0},
		"no room":            {forwardError("v1.a", errNoRoom), 1},
		"unanswered":         {forwardError("v1.a", backend.ErrUnanswered), 0},
		"bad response":       {forwardError("v1.a", backend.ErrBadResponse), 0},
		"unreached":          {forwardError("v1.a", errors.New("refused")), 1},
	} {
		status, got := (*apierrors.StatusError)(nil), int32(0)
		if errors.As(tt.err, &status) && status.ErrStatus.Details != nil {
			got = status.ErrStatus.Details.RetryAfterSeconds
		}
		if status == nil || got != tt.want {
			t.Fatalf("%s: Retry-After %d, want %d: %v", name, got, tt.want, tt.err)
		}
		field := (&Head{Fields: readyAnswer(status).Fields}).get("retry-after")
		if tt.want == 0 && field != "" || tt.want != 0 && field != fmt.Sprint(tt.want) {
			t.Errorf("%s: the field is %q, want %d", name, field, tt.want)
		}
	}
}
