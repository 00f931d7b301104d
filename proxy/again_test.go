package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

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
			t.Errorf("%s: Retry-After %d, want %d: %v", name, got, tt.want, tt.err)
		}
	}
}

// A request without a connection waits for a dial, and the access log shows for how long.
func TestAccessLogKnowsTheWait(t *testing.T) {
	access, seen := newLog(t)
	w := newWorld(t, worldConfig{access: access})
	client := w.httpClient(t, "h2", nil)
	for range 2 { // the first one also reviews bob's token
		r := w.as(t, "bob", "GET", remoteGV+"/widgets", nil)
		w.do(t, client, r)
		var got struct{ Waited, First float64 }
		must.Do(t, json.Unmarshal([]byte(<-seen), &got))
		if got.Waited <= 0 || got.First < got.Waited {
			t.Errorf("%+v", got)
		}
		w.remote.CloseClientConnections()
	}
}
