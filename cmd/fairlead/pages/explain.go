package pages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/answer/rules"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/registry"
)

const maxPath = 8 << 10 // longer than any path that Kubernetes has

// serveExplain explains a request of the caller, or of another user if the caller may create a SubjectAccessReview.
func (p *Pages) serveExplain(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	target := q.Get("path")
	if !strings.HasPrefix(target, "/") || len(target) > maxPath {
		http.Error(w, "path must begin with a slash, and be shorter than 8 KiB", http.StatusBadRequest)
		return
	}
	u, ok := request.UserFrom(r.Context())
	if !ok {
		http.Error(w, "the request is not authenticated", http.StatusUnauthorized)
		return
	}
	if name := q.Get("user"); name != "" {
		const reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
		d, denied := p.cfg.Proxy.Explain(r.Context(), http.MethodPost, reviews, "", "", u)
		if d.User == nil { // refused before it was authorized
			denied = d.Err
		}
		if denied != nil {
			code := map[bool]int{true: http.StatusForbidden, false: http.StatusServiceUnavailable}
			http.Error(w, "explaining a request of another user: "+denied.Error(), code[apierrors.IsForbidden(denied)])
			return
		}
		u = proxy.Impersonated(name, q.Get("uid"), q["group"])
	}
	method := cmp.Or(strings.ToUpper(q.Get("method")), http.MethodGet)
	if _, err := netip.ParseAddr(cmp.Or(q.Get("source"), "::")); err != nil {
		http.Error(w, "source must be an IP address", http.StatusBadRequest)
		return
	}
	writeJSON(w, p.explain(r.Context(), method, target, q.Get("agent"), q.Get("source"), u))
}

func (p *Pages) explain(ctx context.Context, method, target, agent, source string, u user.Info) *answer.Explanation {
	d, denied := p.cfg.Proxy.Explain(ctx, method, target, agent, source, u)
	return p.explanation(method, target, agent, u, d, denied)
}

func (p *Pages) explanation(
	method, target, agent string, u user.Info, d proxy.Decision, denied error) *answer.Explanation {
	path, _, _ := strings.Cut(target, "?")
	x := &answer.Explanation{Method: method, Path: target, Verb: d.Request.Verb, Destination: destination(d.Action)}
	e := p.claimant(path, d.Entry)
	x.Why = slices.Concat([]string{names(path)}, p.claims(e), further(e, &d, agent), []string{leads(&d)})
	x.Rules = rules.Of(d.DryRun, d.Rule)
	for _, r := range x.Rules {
		x.Why = append(x.Why, "it matches rule "+r.String())
	}
	if e := cmp.Or(d.Entry, e); e != nil {
		x.APIService = new(p.apiService(e))
		p.details(&answer.Status{}, map[string]*answer.APIService{x.APIService.Name: x.APIService})
	}
	refusal, forbidden := d.Err, apierrors.IsForbidden(denied)
	if denied != nil { // the review failed, unless it forbids
		refusal = denied
		x.Authorization = map[bool]string{true: "denied: ", false: "unknown: "}[forbidden] + denied.Error()
	} else if d.User != nil {
		x.Authorization = "allowed"
	}
	if status, ok := errors.AsType[*apierrors.StatusError](refusal); ok {
		x.Code, x.Message = int(status.ErrStatus.Code), status.ErrStatus.Message
	}
	x.Identity = identity(&d, u)
	x.Timeout = timeout(&d)
	if x.Cause, x.Advice = diagnose(&d, x.APIService); x.Cause == "" && d.Action == proxy.ToLocal {
		p.explainLocal(x)
	} else if x.Cause == "" && x.APIService != nil {
		x.Cause, x.Advice = x.APIService.Cause, x.APIService.Advice
	}
	x.Cause = Brief(x.Cause)
	switch {
	case forbidden && d.Rule != nil && d.Rule.Action == "Deny":
		x.Advice = "correct the rule, or put one with action Allow before it (docs/rules.md)"
	case forbidden:
		x.Advice = "grant it by a Role or ClusterRole and a binding, which takes effect within 10 s " +
			"(--authorization-webhook-cache-unauthorized-ttl); kubectl auth can-i asks the same question"
	case denied != nil:
		x.Advice = "Fairlead must reach the local apiserver, and may create subjectaccessreviews there " +
			"(ClusterRole system:fairlead)"
	default:
		p.blame(x, d.Err != nil && (d.Entry == nil || d.Entry.Local()), d.Pool == authn.PoolImpersonate)
		return x
	}
	x.Destination, x.Identity, x.Cause = "refused", nil, denied.Error()
	p.blame(x, !forbidden, false)
	return x
}

// blame names the check of ours by which a request fails that we refuse for no other reason. With a certificate of ours
// that is invalid or unknown to the cluster, or without the right to impersonate, others refuse it.
func (p *Pages) blame(x *answer.Explanation, refused, impersonated bool) {
	for _, c := range p.cfg.Process().Failing() {
		others := c.Name == "certificates" || c.Name == "authentication-configmap" || impersonated && c.Name == "rights"
		if (refused && x.Code/100 != 4 || x.Cause == "" && others) && (c.Gates || c.Users != "") {
			x.Cause, x.Advice = c.Name+": "+c.Message, cmp.Or(c.Advice, x.Advice)
			return
		}
	}
}

// explainLocal adds the local apiservers, and what is wrong with them. If none is healthy, it is forwarded in vain.
func (p *Pages) explainLocal(x *answer.Explanation) {
	servers := p.cfg.LocalServers()
	if x.APIService != nil {
		x.APIService.Endpoints = p.localServers(servers)
	}
	bad, last := Unhealthy(servers)
	if bad == 0 {
		return
	}
	x.Cause = fmt.Sprintf("%d of %d local apiservers are unhealthy and get no requests: %s",
		bad, len(servers), last.Message)
	x.Advice = advice.For(last.Message)
	if bad == len(servers) {
		x.Code, x.Message = http.StatusServiceUnavailable, "the local apiserver could not be reached"
		x.Cause = "no local apiserver is healthy: " + last.Message
	}
}

func destination(a proxy.Action) string {
	return [...]string{
		proxy.Refuse: "refused", proxy.ToLocal: "local", proxy.ToRemote: "remote",
		proxy.ToDocument: "document", proxy.ToPage: "page", proxy.ToHealth: "health",
	}[a]
}

func names(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "apis" && len(parts) > 2:
		return fmt.Sprintf("the path names version %s of group %s", parts[2], parts[1])
	case parts[0] == "apis" && len(parts) == 2 && parts[1] != "":
		return fmt.Sprintf("the path names group %s: its discovery document", parts[1])
	case parts[0] == "api" && len(parts) > 1:
		return fmt.Sprintf("the path names version %s of the core group", parts[1])
	}
	return "the path names no group-version"
}

// claimant returns the APIService that claims a path, also of a merged document, and not a further backend of it.
func (p *Pages) claimant(path string, e *registry.Entry) *registry.Entry {
	if e == nil {
		parts := strings.Split(strings.Trim(path, "/"), "/")
		if len(parts) != 3 || parts[0] != "apis" {
			return nil
		}
		return p.cfg.Registry.Table().Entry(schema.GroupVersion{Group: parts[1], Version: parts[2]})
	}
	if e.Rule == nil {
		return e
	}
	return cmp.Or(p.cfg.Registry.Table().Entry(e.GroupVersion), e)
}

// further describes what the policy says of a request: which of the servers answers, and why no other one does.
func further(e *registry.Entry, d *proxy.Decision, agent string) (steps []string) {
	if e == nil {
		return nil
	}
	chosen, q := false, d.Request.ForPolicy(d.User, agent)
	for _, f := range e.Further {
		text, field := "not to ", f.Rule.Fails(&q)
		why := "its " + field + " do not match"
		switch {
		case d.Entry == nil: // a document of all
			text, why = "a part of it is that of ", "a further backend by the policy"
		case f == d.Entry && f == e.StandIn:
			text, why = "it goes to ", "the standby, because the APIService's own backend is unavailable, "+
				"or has been back for less than 10 s"
		case f == d.Entry:
			text, why = "it goes to ", "the first rule of the policy that matches"
		case f.Rule.When == nil:
			why = "a standby, which does not answer now"
		case field == "":
			why = "its rule matches too, and comes later"
		case q.Namespace == "" && strings.HasPrefix(field, "namespace"):
			why = "the request is across namespaces, which no rule by namespace matches"
		}
		chosen = chosen || f == d.Entry
		steps = append(steps, fmt.Sprintf("%s%s, %s: %s (%s)", text, f.Name, f.Backend, why, f.Rule.Where))
	}
	if len(steps) > 0 && !chosen && d.Entry != nil {
		steps = append(steps, "no rule of the policy matches, so that the APIService's own backend answers")
	}
	return steps
}

func (p *Pages) claims(e *registry.Entry) []string {
	if e == nil {
		return []string{"no APIService claims it"}
	}
	claim := "APIService " + e.Name + " claims it and is Local: it names no extension server that Fairlead asks"
	if !e.Local() {
		claim = "APIService " + e.Name + " claims it for " + cmp.Or(e.Backend.URLs, "service "+e.Backend.String())
	}
	if e.Front != "" {
		claim += fmt.Sprintf("; the cluster sends it to service %s, and its own condition says: %s",
			e.Front, cmp.Or(e.FrontSays, "nothing"))
	}
	groups := p.cfg.Registry.Table().Groups()
	at := slices.IndexFunc(groups, func(g *registry.Group) bool { return g.Name == e.GroupVersion.Group })
	if at < 0 {
		return []string{claim}
	}
	g := groups[at]
	version := slices.IndexFunc(g.Entries, func(o *registry.Entry) bool { return o.Name == e.Name })
	return []string{claim, fmt.Sprintf(
		"in discovery its group is %d of %d (priority %d), and its version %d of %d (versionPriority %d)",
		at+1, len(groups), g.Priority, version+1, len(g.Entries), e.Object.Spec.VersionPriority)}
}

func leads(d *proxy.Decision) string {
	switch d.Action {
	case proxy.ToLocal:
		return fmt.Sprintf("it is forwarded to the local apiserver %s, which authorizes it", d.Server)
	case proxy.ToRemote:
		which := "its endpoint"
		if n := len(d.Entry.Endpoints); n != 1 {
			which = fmt.Sprintf("one of its %d endpoints", n)
		}
		return fmt.Sprintf("it is forwarded to %s, as %s, if it is authorized here", which, d.Entry.Backend.ServerName)
	case proxy.ToDocument:
		return "Fairlead answers it with a document merged from the local apiserver's and the backends'"
	case proxy.ToPage:
		return "Fairlead serves it itself"
	case proxy.ToHealth:
		return "Fairlead answers for its own readiness first, then the local apiserver"
	}
	return "Fairlead refuses it"
}

func identity(d *proxy.Decision, u user.Info) *answer.Identity {
	if d.Action != proxy.ToLocal && d.Action != proxy.ToRemote {
		return nil
	}
	id := &answer.Identity{User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: u.GetExtra()}
	for _, f := range d.Set {
		if strings.HasPrefix(f.Name, "x-remote-") || strings.HasPrefix(f.Name, "impersonate-") {
			id.Headers = append(id.Headers, f.Name+": "+f.Value)
		}
	}
	id.How = "asserted in these headers under the proxy client certificate; a token is not forwarded"
	switch {
	case d.Pool == authn.PoolImpersonate:
		id.How = "a user whom Fairlead has authenticated is asserted in these headers, with Fairlead's own " +
			"credential; a token that only the cluster can verify is forwarded unchanged, without them"
	case d.Action == proxy.ToLocal:
		id.How = "a client certificate's user is asserted in these headers under the proxy client certificate; " +
			"a token is forwarded unchanged, without them"
	}
	return id
}

func timeout(d *proxy.Decision) string {
	switch {
	case d.Action == proxy.ToLocal:
		return "none of Fairlead's: the local apiserver has its own"
	case d.Action != proxy.ToRemote:
		return ""
	case d.LongRunning:
		return "long-running: none"
	case !d.Request.IsResourceRequest:
		return "discovery: " + d.Timeout.String()
	}
	return "request: " + d.Timeout.String()
}
