package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// Clients get a code and the seconds until a retry. client-go retries every answer with
// Retry-After: only a failure that may pass soon, before anything was executed, has one.
func TestErrorsOfClients(t *testing.T) {
	down := &registry.Entry{Name: "v1.a", Verdict: registry.Verdict{Since: time.Unix(0, 0)}}
	frame := func(r engine.Reason) error {
		return forwardError("v1.a", &engine.Failure{Outcome: engine.Outcome{Reason: r, Err: errors.New("cause")}})
	}
	failed := func(r engine.Reason, to Action, verb string) error {
		d := &Decision{Action: to, Entry: down, Request: Request{Verb: verb}}
		return d.failure(&engine.Failure{Outcome: engine.Outcome{Reason: r}})
	}
	for want, errs := range map[[2]int32][]error{
		{403, 0}: {
			errNotImpersonated("root", "system:masters"), errForbidden(&Decision{User: &user.DefaultInfo{Name: "bob"}}),
			errForbidden(&Decision{Request: Request{Path: strings.Repeat("<", maxEchoed), Verb: "get"}}),
		},
		{404, 0}: {errNotFound},
		{405, 0}: {errConnect},
		{408, 0}: {errSlowBody},
		{413, 0}: {errTooLong},
		{431, 0}: {frame(engine.ReasonTooLarge)},
		{429, 1}: {errBusy("v1.a"), errReviews, errGivenUp},
		{429, 5}: {errShuttingDown},
		{500, 0}: {errPanicked},
		{502, 0}: {errRedirect("v1.a"), forwardError("v1.a", errManyFields), frame(engine.ReasonBadResponse), frame(engine.ReasonBlamed)},
		{503, 0}: {
			errProtected(down), errUnavailable(down, time.Unix(10, 0)), errUnavailable(&registry.Entry{Settings: registry.Settings{Maintenance: "x"}}, time.Now()),
			frame(engine.ReasonReset), frame(engine.ReasonLost), frame(engine.ReasonDrain), frame(engine.ReasonClientReset),
			failed(engine.ReasonLost, ToRemote, "watch"), failed(engine.ReasonLost, ToLocal, "create"),
			failed(engine.ReasonDrain, ToRemote, "proxy"),
		},
		{503, 1}: {
			errOwnCredential, errAuthenticating, errAuthorizing, forbidden(errAuthorizing), errNotReady, errUntold, errUnavailable(down, time.Unix(9, 0)),
			forwardError("v1.a", backend.Unreachable()), forwardError("v1.a", errors.New("refused")), frame(engine.ReasonNoEndpoint), frame(engine.ReasonDial), frame(engine.ReasonRefused), frame(engine.ReasonBusy),
			failed(engine.ReasonLost, ToLocal, "watch"), failed(engine.ReasonDrain, ToRemote, "watch"),
			failed(engine.ReasonRetired, ToLocal, "watch"),
		},
		{504, 0}: {forwardError("v1.a", context.DeadlineExceeded), frame(engine.ReasonDeadline)},
		{508, 0}: {errLoop},
	} {
		for _, err := range errs {
			var status *apierrors.StatusError
			if !errors.As(err, &status) {
				t.Fatalf("no status: %v", err)
			}
			s, retryAfter, field := status.ErrStatus, int32(0), ""
			if s.Details != nil {
				retryAfter = s.Details.RetryAfterSeconds
			}
			if want[1] > 0 {
				field = fmt.Sprint(want[1])
			}
			check.Same(t, want, [2]int32{s.Code, retryAfter}, "%q: code, and seconds until a retry", s.Message)
			check.Same(t, true, len(s.Message) < 512, "%.99q: its length", s.Message)
			check.Same(t, field, (&Head{Head: wire.Head{Fields: readyAnswer(status).Fields}}).get("retry-after"), "%q: Retry-After", s.Message)
		}
	}
}

// A long target is not repeated, neither for who asks nor for who would be somebody else there. Nor is a long name of
// that somebody, or of a group without one.
func TestLongTarget(t *testing.T) {
	door, long := newWorld(t, worldConfig{}), strings.Repeat("x", 2*maxEchoed)
	for _, tt := range []struct{ token, field, as, method, below, want string }{
		{"nobody", "Impersonate-User", "jane", "GET", "/namespaces/" + long + "/widgets", "403 true"},
		{"nobody", "Impersonate-User", "jane", long, "", "403 true"},
		{"nobody", "X-Other", "jane", "GET", "/namespaces/" + long + "/widgets", "403 true"},
		{"boss", "Impersonate-User", long, "GET", "/widgets", "403 true"},
		{"boss", "Impersonate-Group", long, "GET", "/widgets", "400 true"},
	} {
		r, w := httptest.NewRequestWithContext(t.Context(), tt.method, remoteGV+tt.below, nil), httptest.NewRecorder()
		r.Header.Set("Authorization", "Bearer token-of-"+tt.token)
		r.Header.Set(tt.field, tt.as)
		door.proxy.ServeHTTP(w, r)
		short := w.Body.Len() < 512
		check.Same(t, tt.want, fmt.Sprint(w.Code, " ", short), "%.99q: the answer, %.99s", fmt.Sprint(tt), w.Body)
	}
}

// Who sends an Accept that no client has cannot fill the memory by it: read, it takes sixty times its size.
func TestLongAccept(t *testing.T) {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis/x", nil)
	r.Header.Set("Accept", strings.Repeat("*;c=d,", 100_000))
	var w *httptest.ResponseRecorder
	n := testing.AllocsPerRun(1, func() {
		w = httptest.NewRecorder()
		(&Proxy{}).writeError(w, r, errUnauthorized)
	})
	check.Same(t, "401 application/json", fmt.Sprint(w.Code, " ", w.Header().Get("Content-Type")), "the answer")
	check.Within(t, 0, 1000, n, "allocations")
	r.Header.Set("If-None-Match", `"tag"`) // a document is as usual
	check.Same(t, http.Header{"If-None-Match": {`"tag"`}}, withoutLongAccept(r).Header, "fields that are read")

	door, asked := newWorld(t, worldConfig{}), false
	door.proxy.impersonated = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked = true
		check.Same(t, nil, r.Header["Accept"], "what the impersonation filter negotiates")
	})
	as := httptest.NewRequestWithContext(t.Context(), http.MethodGet, remoteGV+"/widgets", nil)
	as.Header.Set("Accept", r.Header.Get("Accept"))
	as.Header.Set("Authorization", "Bearer token-of-bob")
	as.Header.Set("Impersonate-User", "jane")
	door.proxy.ServeHTTP(httptest.NewRecorder(), as)
	check.Same(t, true, asked, "the impersonation filter is asked")
}

// A local apiserver that does not come back from a restart is no reason to ask again: kubectl would
// say only after ten tries, half a minute later, that it is down.
func TestNoRetryOfTheLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := newLocal(t, "192.0.2.1:6443", func(context.Context, string, string) (net.Conn, error) { return nil, errNotFound },
			func(bool) (*tls.Config, error) { return nil, errNotFound })
		p := &Proxy{cfg: Config{Local: local}}
		after := func(pause time.Duration, err error) string {
			time.Sleep(pause)
			w := httptest.NewRecorder()
			p.writeError(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods", http.NoBody), err)
			return w.Header().Get("Retry-After")
		}
		gone := forwardError("the local apiserver", backend.Unreachable())
		check.Same(t, "1", after(recent, gone), "during a restart")
		check.Same(t, "", after(time.Second, gone), "later")
		check.Same(t, "1", after(0, errBusy("v1.a")), "429")
		local.Report(registry.Report{Endpoint: registry.Endpoint{Address: "192.0.2.1:6443", Health: registry.Healthy}})
		check.Same(t, "1", after(time.Hour, gone), "once it is back")
	})
}
