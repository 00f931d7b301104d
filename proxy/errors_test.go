package proxy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
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
		if s.Code != want.code || !strings.Contains(s.Message, want.message) || retryAfter != want.retryAfter {
			t.Errorf("%s: %+v", reason, s)
		}
	}
}

// Clients get a code, a message, and the seconds until a retry.
func TestMessages(t *testing.T) {
	for want, err := range map[string]error{
		"503 the caller could not be authenticated, 1":                                        errAuthenticating(),
		"500 Internal error occurred: the request could not be authorized, 0":                 errAuthorizing(),
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
