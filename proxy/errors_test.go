package proxy

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
)

// Clients get a code and the seconds until a retry. client-go retries every answer with
// Retry-After: only a failure that may pass soon, before anything was executed, has one.
func TestErrorsOfClients(t *testing.T) {
	down := &registry.Entry{Name: "v1.a", Verdict: registry.Verdict{Since: time.Unix(0, 0)}}
	frame := func(r h2.Reason) error { return forwardError("v1.a", frameError(h2.Outcome{Reason: r})) }
	for name, tt := range map[string]struct {
		err              error
		code, retryAfter int32
	}{
		"not impersonated":   {errNotImpersonated("root", "system:masters"), 403, 0},
		"own credential":     {errOwnCredential(), 503, 1},
		"not authenticated":  {errAuthenticating(), 503, 1},
		"not authorized":     {errAuthorizing(), 503, 1},
		"not impersonating":  {forbidden(errAuthorizing()), 503, 1},
		"forbidden":          {errForbidden(&authz.Attributes{User: &user.DefaultInfo{Name: "bob"}}, ""), 403, 0},
		"panic":              {errPanicked(), 500, 0},
		"CONNECT":            {errConnect(), 405, 0},
		"no table":           {errNotReady(), 503, 1},
		"draining":           {errShuttingDown(), 429, 5},
		"loop":               {errLoop(), 508, 0},
		"not found":          {errNotFound(), 404, 0},
		"too long":           {errTooLong(), 413, 0},
		"protected":          {errProtected(down), 503, 0},
		"down for long":      {errUnavailable(down, time.Unix(10, 0)), 503, 0},
		"down since shortly": {errUnavailable(down, time.Unix(9, 0)), 503, 1},
		"in maintenance":     {errUnavailable(&registry.Entry{Policy: registry.Policy{Maintenance: "x"}}, time.Now()), 503, 0},
		"redirect":           {errRedirect("v1.a"), 502, 0},
		"busy":               {errBusy("v1.a"), 429, 1},
		"reviews":            {errReviews(), 429, 1},
		"slow body":          {errSlowBody(), 408, 0},
		"given up":           {errGivenUp(), 429, 1},
		"late":               {forwardError("v1.a", context.DeadlineExceeded), 504, 0},
		"no room":            {forwardError("v1.a", errNoRoom), 503, 1},
		"unanswered":         {forwardError("v1.a", backend.ErrUnanswered), 503, 0},
		"bad response":       {forwardError("v1.a", backend.ErrBadResponse), 502, 0},
		"unreached":          {forwardError("v1.a", errors.New("refused")), 503, 1},

		"frames: no endpoint":  {frame(h2.ReasonNoEndpoint), 503, 1},
		"frames: no dial":      {frame(h2.ReasonDial), 503, 1},
		"frames: refused":      {frame(h2.ReasonRefused), 503, 1},
		"frames: busy":         {frame(h2.ReasonBusy), 503, 1},
		"frames: reset":        {frame(h2.ReasonReset), 503, 0},
		"frames: lost":         {frame(h2.ReasonLost), 503, 0},
		"frames: bad response": {frame(h2.ReasonBadResponse), 502, 0},
		"frames: too large":    {frame(h2.ReasonTooLarge), 502, 0},
		"frames: deadline":     {frame(h2.ReasonDeadline), 504, 0},
		"frames: drain":        {frame(h2.ReasonDrain), 503, 0},
		"frames: client gone":  {frame(h2.ReasonClientReset), 503, 0},
	} {
		var status *apierrors.StatusError
		if !errors.As(tt.err, &status) {
			t.Fatalf("%s: no status: %v", name, tt.err)
		}
		s, retryAfter, field := status.ErrStatus, int32(0), ""
		if s.Details != nil {
			retryAfter = s.Details.RetryAfterSeconds
		}
		if tt.retryAfter > 0 {
			field = fmt.Sprint(tt.retryAfter)
		}
		check.Same(t, [2]int32{tt.code, tt.retryAfter}, [2]int32{s.Code, retryAfter}, "%s: code and seconds of %q", name, s.Message)
		check.Same(t, field, (&Head{Fields: readyAnswer(status).Fields}).get("retry-after"), "%s: Retry-After", name)
	}
}
