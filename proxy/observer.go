package proxy

import (
	"net"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/tracing"
)

// observer holds the audit event and the span of one request. A nil observer records nothing, and
// is the only cost of a request while both are off.
type observer struct {
	p     *Proxy
	span  *tracing.Span // nil means no tracing
	event *audit.Event  // nil means that the policy leaves the request out, or that late is set
	// late is set if the local apiserver will record the request. It is recorded here only if it did not get there.
	late *audit.Request
}

// observe starts the records of a request after its decision. It emits nothing yet, because
// Proxy.ServeHTTP may still take the request over.
func (p *Proxy) observe(h *Head, d *Decision, id string) *observer {
	if p.cfg.Audit == nil && p.cfg.Tracer == nil {
		return nil
	}
	f := &observer{p: p}
	if p.cfg.Tracer != nil {
		f.span = tracing.Start(p.cfg.Tracer, &h.Head, spanName(h.Method, &d.Request), id, h.Arrived, trusted(caller(d)))
	}
	if p.cfg.Audit == nil {
		return f
	}
	r := &audit.Request{
		Attributes: d.Request.attributes(caller(d)), ID: id, Path: h.Path, RawQuery: h.RawQuery, UserAgent: h.get("user-agent"), SourceIPs: sourceIPs(h, d), Received: h.Arrived,
		From: bound.Caller(caller(d), h.Remote).AnyConn(), LongRunning: endless(h, d),
	}
	if d.Action == ToLocal && !p.cfg.AuditLocal {
		f.late = r
		return f
	}
	f.open(r, d)
	return f
}

// open opens the event. As in kube-apiserver's filter, the authorizer's decision is added where it was asked.
func (f *observer) open(r *audit.Request, d *Decision) {
	f.event = f.p.cfg.Audit.Open(r)
	f.named(d)
}

// named notes the server: for an impersonated user, only the filter's end shows which rules match.
func (f *observer) named(d *Decision) {
	if f != nil && f.event != nil && d.Entry != nil {
		f.event.Annotate("fairlead.dev/apiservice", d.Entry.Name)
	}
}

// begin emits the first stage. A caller that could not be authenticated gets a single event.
func (f *observer) begin(d *Decision) {
	if f == nil || f.event == nil {
		return
	}
	if apierrors.IsUnauthorized(d.Err) {
		f.event.Refused(http.StatusUnauthorized, "Authentication failed, "+attempted(d.Credentials.Kind))
		f.event = nil
		return
	}
	f.event.Received()
	f.authorized(d)
}

// bodies reports whether the policy records this request's bodies.
func (f *observer) bodies(d *Decision) bool {
	if f == nil || f.event == nil || !f.event.Bodies() {
		return false
	}
	// Decided by the route: with impersonation, the action is not final yet.
	return d.Entry != nil && !d.Entry.Local() || d.Request.IsResourceRequest && f.p.actionOf(d.route) == ToPage
}

func (f *observer) responded(status int) {
	if f != nil && f.event != nil {
		f.event.Started(status)
	}
}

// panicked records that a handler has panicked. It ignores http.ErrAbortHandler, with which a
// handler ends when its client has gone.
func (f *observer) panicked(cause any) {
	if cause == http.ErrAbortHandler || f.event == nil { //nolint:errorlint,err113 // the value itself is meant
		return
	}
	f.event.Panicked()
	f.event = nil
}

// end emits the last stage and ends the span.
func (f *observer) end(x *exchange, o *engine.Outcome) {
	if f == nil {
		return
	}
	d, wrong := &x.decision, string(o.Reason) // briefly what went wrong; empty means nothing did
	switch {
	case x.own != nil:
		wrong = x.own.Error()
	case o.Status == statusClientGone:
		wrong = "the client went away before there was an answer"
	}
	if f.span != nil {
		apiService := ""
		if d.Entry != nil {
			apiService = d.Entry.Name
		}
		f.span.End(o, d.Request.Verb, apiService, wrong)
	}
	if f.late != nil && x.own != nil { // this process answered instead of the local apiserver
		f.open(f.late, d)
	}
	if f.event == nil {
		return
	}
	if d.Impersonator != nil && d.User != nil {
		f.event.Impersonated(d.User)
	}
	if d.Rule != nil {
		f.event.Annotate("fairlead.dev/rule", d.Rule.Name)
	}
	if d.DryRun != nil {
		f.event.Annotate("fairlead.dev/dry-run-rule", d.DryRun.Name)
	}
	f.authorized(d)
	f.event.Completed(o.Status, wrong)
}

// authorized adds the authorizer's decision, if it was asked, to the stages after it.
func (f *observer) authorized(d *Decision) {
	if !d.asked {
		return
	}
	word := "forbid"
	if d.verdict.Allowed {
		word = "allow"
	}
	f.event.Annotate("authorization.k8s.io/decision", word)
	f.event.Annotate("authorization.k8s.io/reason", d.verdict.Reason)
}

// caller returns who sent the request, even if it impersonates another. Nil means unknown.
func caller(d *Decision) user.Info {
	if d.Impersonator != nil {
		return d.Impersonator
	}
	return d.User
}

// attributes returns the input of the audit policy, and of a refusal's text.
func (r *Request) attributes(u user.Info) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: u, Verb: r.Verb, ResourceRequest: r.IsResourceRequest, APIGroup: r.APIGroup, APIVersion: r.APIVersion, Namespace: r.Namespace, Resource: r.Resource,
		Subresource: r.Subresource, Name: r.Name, Path: r.Path,
	}
}

// endless reports whether a request is long-running. With impersonation that is not decided yet.
func endless(h *Head, d *Decision) bool {
	if d.Action != Impersonate {
		return d.LongRunning
	}
	var declared []string
	if d.Entry != nil {
		declared = d.Entry.Settings.LongRunningSubresources
	}
	return h.Upgrade != "" || longPage(h) || d.Request.longRunning(declared)
}

// sourceIPs returns the client's addresses: those of a trusted front proxy's X-Forwarded-For, and the other end of the
// connection. From other clients that header is not trusted. As in kube-apiserver, what is no address is left out: a
// proxy passes on what its client has sent. So the nearest addresses, which proxies have added, are kept.
func sourceIPs(h *Head, d *Decision) []string {
	ips := []string{h.RemoteIP}
	if d.Credentials.Kind != authn.KindFrontProxy {
		return ips
	}
	for list := h.list("x-forwarded-for"); list != "" && len(ips) <= maxSources; {
		at := strings.LastIndexByte(list, ',')
		if ip := net.ParseIP(strings.TrimSpace(list[at+1:])); ip != nil {
			ips = append(ips, ip.String()) // without keeping the field in memory
		}
		list = list[:max(at, 0)]
	}
	slices.Reverse(ips)
	return ips
}

// maxSources bounds the addresses of a chain of proxies.
const maxSources = 16

// trusted reports whether a caller's trace is continued, by kube-apiserver's rule (filters.WithTracing). Other callers
// could make this process sample every request, or write into foreign traces; they get a new trace with a link.
func trusted(u user.Info) bool {
	return u != nil && (slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) || slices.Contains(u.GetGroups(), user.MonitoringGroup))
}

// spanName returns kube-apiserver's name of a span: the path without names, so that their number is
// bounded by the resources.
func spanName(method string, r *Request) string {
	if !r.IsResourceRequest {
		return method
	}
	name := "/api"
	if r.APIGroup != "" {
		name = "/apis/" + r.APIGroup
	}
	name += "/" + r.APIVersion
	if r.Namespace != "" {
		name += "/namespaces/{:namespace}"
	}
	name += "/" + r.Resource
	if r.Name != "" {
		name += "/{:name}"
	}
	if r.Subresource != "" {
		name += "/" + r.Subresource
	}
	return method + " " + name
}

// attempted says how the caller tried to authenticate.
func attempted(k authn.Kind) string {
	switch k {
	case authn.KindToken, authn.KindIssued:
		return "attempted: bearer"
	case authn.KindCertificate, authn.KindFrontProxy, authn.KindInvalid:
		return "attempted: x509"
	}
	return "no credentials provided"
}
