package proxy

import (
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-proxy/fairlead/proxy/audit"
	"github.com/fairlead-proxy/fairlead/proxy/tracing"
)

// follow is what follows one request beside metrics and access log: its audit event and its span. A nil follow follows nothing, and is all that a request
// costs while both are off.
type follow struct {
	p     *Proxy
	span  *tracing.Span // nil: there is no tracing
	event *audit.Event  // nil: the policy leaves the request out, or late is set
	// late is for a request that the local apiserver records, as long as it gets it: what it is told of is only recorded here when it was not reached.
	late *audit.Request
}

// following reports whether any request is followed.
func (p *Proxy) following() bool { return p.cfg.Audit != nil || p.cfg.Tracer != nil }

// follow begins to follow a request that was decided upon. It emits nothing yet: Proxy.ServeHTTP may have the request after all.
func (p *Proxy) follow(h *Head, d *Decision) *follow {
	if !p.following() {
		return nil
	}
	f := &follow{p: p}
	id := auditID(d.Set, h)
	if p.cfg.Tracer != nil {
		f.span = p.cfg.Tracer.Start(&tracing.Request{
			Method: h.Method, Path: h.Path, Name: spanName(h.Method, &d.Request), AuditID: id, Began: h.Arrived, Fields: h.Fields, Trusted: trusted(caller(d)),
		})
	}
	if p.cfg.Audit == nil {
		return f
	}
	r := &audit.Request{
		Attributes: attributes(d), ID: id, Path: h.Path, RawQuery: h.RawQuery, UserAgent: h.get("user-agent"), SourceIPs: sourceIPs(h, d), Received: h.Arrived,
		LongRunning: endless(h, d),
	}
	if d.Action == ToLocal && !p.cfg.Audit.Local() {
		f.late = r
		return f
	}
	f.open(r, d)
	return f
}

// open makes the event. The authorizer's word is added where it was asked, as kube-apiserver's own filter does.
func (f *follow) open(r *audit.Request, d *Decision) {
	e := f.p.cfg.Audit.Open(r)
	if f.event = e; e == nil {
		return
	}
	if d.Entry != nil {
		e.Annotate("fairlead.dev/apiservice", d.Entry.Name)
	}
}

// begin emits what is known at the beginning. A caller who could not be authenticated has one event only.
func (f *follow) begin(d *Decision) {
	if f == nil || f.event == nil {
		return
	}
	if apierrors.IsUnauthorized(d.Err) {
		f.event.Refused(http.StatusUnauthorized, "Authentication failed, "+attempted(d.Credentials.Kind))
		f.event = nil
		return
	}
	f.event.Received()
}

// bodies reports whether the policy wants this request's bodies.
func (f *follow) bodies(d *Decision) bool {
	return f != nil && f.event != nil && d.Entry != nil && !d.Entry.Local() && f.event.Bodies()
}

// responded sees the response head.
func (f *follow) responded(status int) {
	if f == nil {
		return
	}
	if f.span != nil {
		f.span.Responded(status)
	}
	if f.event != nil {
		f.event.Started(status)
	}
}

// propagate tells the next hop of the span, over HTTP/1.1.
func (f *follow) propagate(h http.Header) {
	if f != nil && f.span != nil {
		f.span.Header(h)
	}
}

// panicked emits that a handler has panicked. A client that went away is no such thing, though it ends a handler in the same way.
func (f *follow) panicked(cause any) {
	if cause == http.ErrAbortHandler || f.event == nil { //nolint:errorlint,err113 // what panic was called with is no chain
		return
	}
	f.event.Panicked()
	f.event = nil
}

// message says what went wrong, in the words that the client got.
func message(err error, status int) string {
	switch {
	case err != nil:
		return err.Error()
	case status == statusClientGone:
		return "the client went away before there was an answer"
	}
	return ""
}

// ending is how a request has ended.
type ending struct {
	status int
	// own says that Fairlead answered in the place of whom the request was for.
	own bool
	// err is what went wrong, in few words. Empty: nothing did.
	err string
	// endpoint is the last one that was tried. Empty: none, or it is not known.
	endpoint string
	retries  int
	// wait is from the head's arrival to the response head. Zero: there was none, or it was seen.
	wait time.Duration
	took time.Duration
}

// end emits what is known at the end.
func (f *follow) end(d *Decision, e *ending) {
	if f == nil {
		return
	}
	if f.span != nil {
		f.endSpan(d, e)
	}
	if f.late != nil && e.own {
		f.open(f.late, d)
	}
	if f.event == nil {
		return
	}
	if d.Impersonator != nil && d.User != nil {
		f.event.Impersonated(d.User)
	}
	f.authorized(d)
	f.event.Completed(e.status, e.err)
}

func (f *follow) endSpan(d *Decision, e *ending) {
	o := &tracing.Outcome{Status: e.status, Err: e.err, Endpoint: e.endpoint, Retries: e.retries, Wait: e.wait, Took: e.took, Verb: d.Request.Verb}
	if d.Entry != nil {
		o.APIService = d.Entry.Name
	}
	f.span.End(o)
}

// authorized adds what the authorizer said. It is in the authorizer's cache, if it was asked.
func (f *follow) authorized(d *Decision) {
	if d.User == nil || d.Action == ToLocal || d.Action == ToHealth || d.Action == Impersonate {
		return
	}
	a := d.attributes()
	a.Now = time.Time{} // the request may have taken hours
	verdict, known := f.p.cfg.Authz.Cached(&a)
	if !known {
		return
	}
	word := "forbid"
	if verdict.Allowed {
		word = "allow"
	}
	f.event.Annotate("authorization.k8s.io/decision", word)
	f.event.Annotate("authorization.k8s.io/reason", verdict.Reason)
}
