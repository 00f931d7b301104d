package proxy

import (
	"cmp"
	"net"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/audit"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/tracing"
	"github.com/fairlead-proxy/fairlead/registry"
)

func (p *Proxy) observes() bool { return p.cfg.Audit != nil || p.cfg.Tracer != nil }

// startRecords adds the audit ID with which a request is forwarded and answered, and starts the records that have it:
// the client's ID, if it is short enough, or a new one. It emits nothing: Proxy.ServeHTTP may take the request over.
func (x *exchange) startRecords() {
	p, h, d := x.p, x.head, &x.decision
	id := h.get(auditHeader)
	ours := id == "" || len(id) > maxAuditID
	if ours {
		id = newAuditID()
	}
	// Sensitive keeps the ID out of HPACK's tables, where each would evict reusable fields.
	x.auditID, d.Set = id, append(d.Set, hpack.HeaderField{Name: auditHeader, Value: id, Sensitive: ours})
	if p.cfg.Tracer != nil {
		x.span = tracing.Start(p.cfg.Tracer, &h.Head, spanName(h.Method, &d.Request), id, h.Arrived, trusted(caller(d)))
	}
	if p.cfg.Audit == nil {
		return
	}
	r := &audit.Request{
		Attributes:  d.Request.attributes(caller(d)),
		ID:          id,
		Path:        h.Path,
		RawQuery:    h.RawQuery,
		UserAgent:   h.get("user-agent"),
		SourceIPs:   sourceIPs(h, d),
		From:        bound.Caller(caller(d), h.Remote).AnyConn(),
		Received:    h.Arrived,
		LongRunning: endless(h, d),
	}
	if (d.Action == ToLocal || d.Action == ToHealth && p.cfg.Local != nil) && !p.cfg.AuditLocal {
		x.late = r
		return
	}
	x.event = p.cfg.Audit.Open(r)
	x.named()
}

// named notes the server, and who is impersonated: only the filter's end shows that, and so which rules match.
func (x *exchange) named() {
	d := &x.decision
	if x.event != nil && d.Entry != nil {
		x.event.Annotate("fairlead.dev/apiservice", d.Entry.Name)
	}
	if x.event != nil && d.Impersonator != nil {
		x.event.Impersonated(d.User)
	}
}

// received emits the first stage. A caller that could not be authenticated gets a single event.
func (x *exchange) received() {
	switch d := &x.decision; {
	case x.event == nil:
	case apierrors.IsUnauthorized(d.Err):
		x.event.Refused(http.StatusUnauthorized, "Authentication failed, "+attempted(d.Credentials.Kind))
		x.event = nil
	default:
		x.event.Received()
		x.authorized()
	}
}

func (x *exchange) bodies() bool {
	if x.event == nil || !x.event.Bodies() {
		return false
	}
	d := &x.decision // decided by the route: with impersonation, the action is not final yet
	return d.Entry != nil && !d.Entry.Local() || d.Request.IsResourceRequest && x.p.actionOf(d.route) == ToPage
}

// endRecords emits the last stage and ends the span. The request is counted by its code.
func (x *exchange) endRecords(o *engine.Outcome, code int) {
	d, wrong := &x.decision, string(o.Reason) // briefly what went wrong; empty means nothing did
	switch {
	case x.own != nil:
		wrong = x.own.Error()
	case o.Status == statusClientGone && (wrong == "" || strings.HasPrefix(wrong, "client-")):
		wrong = "the client went away before there was an answer"
	}
	if x.span != nil {
		x.span.End(o, code, d.Request.Verb, cmp.Or(d.Entry, &registry.Entry{}).Name, wrong)
	}
	if x.late != nil && (x.own != nil || d.Action != ToLocal || d.Impersonator != nil) { // see late
		x.event = x.p.cfg.Audit.Open(x.late)
		x.named()
	}
	if x.event == nil {
		return
	}
	if d.Rule != nil {
		x.event.Annotate("fairlead.dev/rule", d.Rule.Name)
	}
	if d.DryRun != nil {
		x.event.Annotate("fairlead.dev/dry-run-rule", d.DryRun.Name)
	}
	x.authorized()
	x.event.Completed(o.Status, wrong, apierrors.ReasonForError(x.own))
}

// authorized adds the authorizer's decision, if it was asked, to the stages after it.
func (x *exchange) authorized() {
	if d := &x.decision; d.asked && x.event != nil {
		word := map[bool]string{true: "allow", false: "forbid"}[d.verdict.Allowed]
		x.event.Annotate("authorization.k8s.io/decision", word)
		x.event.Annotate("authorization.k8s.io/reason", d.verdict.Reason)
	}
}

// caller returns who sent the request, even if it impersonates another. Nil means that only the local apiserver knows.
func caller(d *Decision) user.Info { return cmp.Or(d.Impersonator, d.User, d.user, d.Credentials.User) }

// attributes returns the input of the audit policy, and of a refusal's text.
func (r *Request) attributes(u user.Info) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: u, Verb: r.Verb, ResourceRequest: r.IsResourceRequest, Path: r.Path,
		APIGroup: r.APIGroup, APIVersion: r.APIVersion, Resource: r.Resource, Subresource: r.Subresource,
		Namespace: r.Namespace, Name: r.Name,
	}
}

// endless reports whether a request is long-running. With impersonation that is not decided yet.
func endless(h *Head, d *Decision) bool {
	if d.Action != Impersonate {
		return d.LongRunning
	}
	declared := cmp.Or(d.Entry, &registry.Entry{}).Settings.LongRunningSubresources
	return h.Upgrade != "" || longPage(h) || d.Request.longRunning(declared)
}

// sourceIPs returns the client's addresses: those of a trusted front proxy's X-Forwarded-For, and the other end of the
// connection, once if they end with it. From other clients that header is not trusted. As in kube-apiserver, what is no
// address is left out: a proxy passes on what its client has sent. So the nearest, which proxies have added, are kept.
func sourceIPs(h *Head, d *Decision) []string {
	ips := []string{h.RemoteIP}
	if d.Credentials.Kind != authn.KindFrontProxy {
		return ips
	}
	for list := h.list("x-forwarded-for"); list != "" && len(ips) <= maxSources; {
		at := strings.LastIndexByte(list, ',')
		if ip := net.ParseIP(strings.TrimSpace(list[at+1:])); ip != nil && (len(ips) > 1 || ip.String() != h.RemoteIP) {
			ips = append(ips, ip.String()) // without keeping the field in memory
		}
		list = list[:max(at, 0)]
	}
	slices.Reverse(ips)
	return ips
}

const maxSources = 16 // bounds the addresses of a chain of proxies

// trusted reports whether a caller's trace is continued, by kube-apiserver's rule (filters.WithTracing). Other callers
// could make this process sample every request, or write into foreign traces; they get a new trace with a link.
func trusted(u user.Info) bool {
	return u != nil && (slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) ||
		slices.Contains(u.GetGroups(), user.MonitoringGroup))
}

// spanName returns kube-apiserver's name of a span: the path without names, so that there are few.
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

func attempted(k authn.Kind) string {
	switch k {
	case authn.KindToken, authn.KindIssued:
		return "attempted: bearer"
	case authn.KindCertificate, authn.KindFrontProxy, authn.KindInvalid:
		return "attempted: x509"
	}
	return "no credentials provided"
}
