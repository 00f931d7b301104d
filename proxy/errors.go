package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/util/responsewriter"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Only this file turns errors into responses. A client learns the group-version and a short cause, never an address.

// retrySoon is the Retry-After of errors that should pass within seconds. client-go retries such responses up to ten
// times, so it is set only where a retry helps: a client of a backend that is down for an hour should learn so at once.
const retrySoon = 1

// recent is how long an unavailable backend counts as restarting: the usual time of a rolling update's step.
const recent = 10 * time.Second

func statusError(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	s := metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}
	return &apierrors.StatusError{ErrStatus: s}
}

func badGateway(name, why string) error {
	return statusError(http.StatusBadGateway, metav1.StatusReasonInternalError, name+": "+why)
}

// unavailable is a 503 with retrySoon. Others are made by apierrors.NewServiceUnavailable.
func unavailable(message string) *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retrySoon}
	return err
}

// errUnfit means that this process lacks what callers with certificates need. A 401 would make them renew a good one.
var errUnfit = unavailable("the front door cannot read or use the cluster's ConfigMap " +
	"kube-system/extension-apiserver-authentication, " +
	"by which callers are authenticated and passed on; their credentials are not at fault")

var errUnauthorized = apierrors.NewUnauthorized("Unauthorized")

func errNotImpersonated(name, group string) error {
	who, flag := "user "+strconv.Quote(name), "--impersonate-refuse-users"
	if group != "" {
		who, flag = who+" of group "+strconv.Quote(group), "--impersonate-refuse-groups"
	}
	return statusError(http.StatusForbidden, metav1.StatusReasonForbidden,
		who+" may not be impersonated ("+flag+"): the cluster accepts such users only with their own token")
}

// errOwnCredential means that the local apiserver rejected this process's credential. A 401 would blame the caller's.
var errOwnCredential = unavailable("the local apiserver rejects the front door's own credential, please try again")

func errForbidden(d *Decision) error {
	if r := &d.Request; len(r.Path)+len(r.Verb) > maxEchoed { // '<' has nine bytes there, for as long as nobody reads
		return errLong
	}
	a := d.Request.attributes(d.User)
	return responsewriters.ForbiddenStatusError(&a, d.verdict.Reason) //fairlead:boundary formats what was authorized
}

// errAuthenticating means that no server could authenticate the caller. A 401 would make a good client give up.
var errAuthenticating = unavailable("the caller could not be authenticated")

// errAuthorizing fails closed, as kube-apiserver does with 500. Here the authorizer is another
// process, which may restart, and nothing was executed: clients should ask again.
var errAuthorizing = unavailable("the request could not be authorized")

// forbidden gives an error the reason that the impersonation filter needs to answer it as it is; of
// others it would show the caller the text, which has addresses.
func forbidden(err *apierrors.StatusError) error {
	s := err.ErrStatus
	s.Reason = metav1.StatusReasonForbidden
	return &apierrors.StatusError{ErrStatus: s}
}

var errPanicked = apierrors.NewInternalError(errors.New("internal error in this process"))

// errConnect refuses tunnels: the API does not use them, and over HTTP/2 CONNECT has no path (RFC 9113 §8.5).
var errConnect = statusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "CONNECT is not offered")

// errInvalidPath answers as kube-apiserver, which finds nothing at such a path, except that it decodes escapes first.
func errInvalidPath(path string) error {
	const message = "the path is ambiguous: its normalized form would select something else"
	if strings.Contains(path, "%") {
		return apierrors.NewBadRequest(message)
	}
	return statusError(http.StatusNotFound, metav1.StatusReasonNotFound, message)
}

var errLong = apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("the target is too long to be repeated"))
var errNameless = apierrors.NewBadRequest("requested impersonation without a user name")

// errListed and errParams refuse heads that no known client sends.
var errListed = apierrors.NewBadRequest("the Connection header lists more than " + strconv.Itoa(maxListed) + " names")
var errParams = apierrors.NewBadRequest("the query has more than " + strconv.Itoa(maxParams) + " parameters")

var errNotReady = unavailable("the table of APIServices is not complete yet, please try again")

var errUntold = unavailable("what the local apiservers serve is not known yet, please try again")

// errShuttingDown is kube-apiserver's response while it drains, with the same Retry-After
// (k8s.io/apiserver/pkg/server/filters/with_retry_after.go).
var errShuttingDown = apierrors.NewTooManyRequests("the front door is shutting down, please try again", 5)

var errLoop = statusError(http.StatusLoopDetected, metav1.StatusReasonInternalError,
	"the request has come back to the Fairlead that sent it")

var errNotFound = statusError(http.StatusNotFound, metav1.StatusReasonNotFound,
	"the server could not find the requested resource")

// errNotSwitched is kube-aggregator's answer to a status below 400 instead of 101: clients then ask without an upgrade.
func errNotSwitched(name string, status int) error {
	return apierrors.NewServiceUnavailable(name + " did not switch protocols: it answered with status " +
		strconv.Itoa(status))
}

var errTooLong = statusError(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge,
	"an upgrade request cannot have a body")

func errProtected(e *registry.Entry) error {
	return apierrors.NewServiceUnavailable(e.Name + " is unavailable: " + registry.ReasonProtectedGroup)
}

// errUnavailable gives only the verdict's reason, because its message may hold addresses.
func errUnavailable(e *registry.Entry, now time.Time) error {
	v := e.Verdict
	if e.Settings.Maintenance != "" {
		return apierrors.NewServiceUnavailable(e.Name + " is in maintenance: " + e.Settings.Maintenance)
	}
	message := e.Name + " is unavailable: " + cmp.Or(v.Reason, "not checked yet")
	if v.Since.IsZero() || now.Sub(v.Since) < recent {
		return unavailable(message)
	}
	return apierrors.NewServiceUnavailable(message)
}

func errRedirect(name string) error {
	return badGateway(name, "the backend attempted to redirect this request, which is not permitted")
}

func errBusy(name string) *apierrors.StatusError {
	return apierrors.NewTooManyRequests(name+" is at its request limit, please try again later", retrySoon)
}

// errReviews means that too many requests of a caller wait for the local apiserver's reviews.
var errReviews = apierrors.NewTooManyRequests(
	"too many requests of this caller are waiting to be authenticated or authorized, please try again later", retrySoon)

// errSlowBody refuses a client that has announced a body and does not send it.
var errSlowBody = statusError(http.StatusRequestTimeout, metav1.StatusReasonTimeout,
	"the body of the request did not come within the allotted time")

var errGivenUp = apierrors.NewTooManyRequests("this user has canceled too many requests, please try again later",
	retrySoon)

// badResponse is the failure of a request whose response is not forwarded.
func badResponse(why string) error {
	return &engine.Failure{Outcome: engine.Outcome{Reason: engine.ReasonBadResponse, Err: errors.New(why)}}
}

// reasonOf returns why forwarding has failed. It is empty if this process refuses the request.
func reasonOf(err error) engine.Reason {
	if f, ok := errors.AsType[*engine.Failure](err); ok {
		return f.Reason
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return engine.ReasonDeadline
	case errors.Is(err, context.Canceled): // by this process: the client is still there
		return engine.ReasonDrain
	}
	return engine.ReasonNone
}

// forwardError returns the client's error, over either protocol, if forwarding to name has failed before a response.
func forwardError(name string, err error) error {
	switch {
	case errors.As(err, new(*apierrors.StatusError)):
		return err
	case errors.Is(err, backend.ErrBody):
		return apierrors.NewBadRequest(backend.ErrBody.Error())
	case full(err):
		return errBusy(name)
	}
	cause := ""
	if inner := errors.Unwrap(err); inner != nil {
		cause = ": " + inner.Error()
	}
	switch reasonOf(err) {
	case engine.ReasonNone, engine.ReasonNoEndpoint, engine.ReasonDial:
		return unavailable(name + " could not be reached")
	case engine.ReasonDeadline:
		return statusError(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
			name+" did not answer within the allotted time")
	case engine.ReasonBusy, engine.ReasonRefused:
		return unavailable(name + " takes no further requests at the moment, please try again later")
	case engine.ReasonTooLarge: // Kubernetes has no reason for it
		const message = ": the backend does not accept a request head of this size"
		return statusError(http.StatusRequestHeaderFieldsTooLarge, metav1.StatusReasonBadRequest, name+message+cause)
	case engine.ReasonBlamed:
		return badGateway(name, "the backend ended the connection at the head of this request"+cause)
	case engine.ReasonBadResponse:
		return badGateway(name, "the backend sent a response that cannot be understood")
	}
	// The backend may have executed the request, so no Retry-After: client-go would repeat even a write.
	return apierrors.NewServiceUnavailable(name + " ended the connection before it had answered")
}

// failure is forwardError for a request. For a group-version's own document it is 503 whatever happened, as from
// kube-aggregator: with any other status the Python client's discovery fails for all groups.
func (d *Decision) failure(err error) error {
	out, reason := forwardError(d.name(), err), reasonOf(err)
	own := reason == engine.ReasonDrain || reason == engine.ReasonRetired // this process has ended it
	if (own || reason == engine.ReasonLost && d.Action == ToLocal) && d.Request.Verb == "watch" {
		return unavailable(out.Error()) // or client-go's reflector does not ask again, but lists anew
	}
	failed := reason == engine.ReasonDeadline || reason == engine.ReasonBlamed || reason == engine.ReasonBadResponse
	if failed && d.Action == ToRemote && !d.Request.IsResourceRequest {
		return apierrors.NewServiceUnavailable(out.Error())
	}
	return out
}

// writeError answers with err, in a form that the client accepts. HTTP/2 connections stay open,
// unlike kube-apiserver's: a refused request says nothing about others on its connection.
func (p *Proxy) writeError(w http.ResponseWriter, r *http.Request, err error) {
	if x := exchangeOf(r.Context()); x != nil {
		x.own = err
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if ok && status.ErrStatus.Code == http.StatusServiceUnavailable && p.cfg.Local != nil && p.cfg.Local.Lost() {
		s := status.ErrStatus // shared by all requests
		s.Details = nil       // no Retry-After: kubectl says the cause at once, instead of after ten tries
		err = &apierrors.StatusError{ErrStatus: s}
	}
	p.limitReading(w)
	h := w.Header()
	h.Set("Cache-Control", "no-cache, private")
	answer := responsewriter.NewInMemoryResponseWriter()
	responsewriters.RespondWithError(answer, withoutLongAccept(r), err, metainternalversionscheme.Codecs)
	maps.Copy(h, answer.Header())
	h.Set("Content-Length", strconv.Itoa(len(answer.Data()))) // else chunked, and who still uploads waits for the end
	w.WriteHeader(answer.RespCode())
	_, _ = w.Write(answer.Data()) // a client that has gone needs no answer
}

// withoutLongAccept returns a request without an Accept that no client sends: reading it takes sixty times its size.
func withoutLongAccept(r *http.Request) *http.Request {
	const longest = 4 << 10 // kubectl's has 250 bytes
	if len(r.Header.Get("Accept")) > longest {
		r = r.Clone(r.Context())
		r.Header.Del("Accept")
	}
	return r
}

// readyAnswer is writeError's response for a client that accepts JSON.
func readyAnswer(err *apierrors.StatusError) *engine.Answer {
	s := err.ErrStatus
	s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, _ := json.Marshal(&s) //fairlead:boundary its own text; strings and numbers always marshal
	body = append(body, '\n')
	fields := []hpack.HeaderField{
		{Name: ":status", Value: strconv.Itoa(int(s.Code))},
		{Name: "cache-control", Value: "no-cache, private"},
		{Name: "content-type", Value: "application/json"},
		{Name: "content-length", Value: strconv.Itoa(len(body))},
		{Name: "x-content-type-options", Value: "nosniff"},
	}
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		after := strconv.Itoa(int(s.Details.RetryAfterSeconds))
		fields = append(fields, hpack.HeaderField{Name: "retry-after", Value: after})
	}
	return &engine.Answer{Status: int(s.Code), Fields: fields, Body: body}
}
