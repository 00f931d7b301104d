package proxy

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/bound"
	"github.com/fairlead-proxy/fairlead/registry"
)

// Action is what becomes of a request.
type Action uint8

// The actions. Refuse is the zero value: a Decision that nobody filled in lets nobody through.
const (
	// Refuse answers with Decision.Err.
	Refuse Action = iota
	// ToLocal forwards to the local apiserver over Decision.Pool.
	ToLocal
	// ToRemote forwards to Decision.Entry's backend.
	ToRemote
	// ToDocument answers with a merged document of our own.
	ToDocument
	// ToPage answers with a page of our own: below /fairlead/, and whatever else nobody serves when there is no local apiserver.
	ToPage
	// ToHealth answers /readyz or /healthz: our own readiness first, then the local apiserver's.
	ToHealth
	// Impersonate hands the request to the impersonation filter, which decides again as whom the caller asked to be.
	Impersonate
)

// Decision says where a request goes, as whom, with which header fields and within which limits. It is the same over both protocols.
type Decision struct {
	// Action is what becomes of the request.
	Action Action
	// route is where the table of Entry leads the path. A request keeps to both, whatever is in force when it is carried out; not to the
	// table itself, which a watch would keep in memory for as long as it lasts.
	route registry.Route
	// Pool is the local apiserver's pool that fits the credentials.
	Pool authn.Pool
	// LongRunning requests have no deadline and count against their own limit.
	LongRunning bool
	// Err is what Refuse answers with: an error that carries a metav1.Status.
	Err error
	// Entry is the table's entry of the path. Nil: the table names none.
	Entry *registry.Entry
	// Request is what is asked for, in Kubernetes' terms.
	Request Request
	// User is as whom the request is served. Nil: the local apiserver finds out by itself.
	User user.Info
	// Impersonator is who asked to be User. Nil: nobody did.
	Impersonator user.Info
	// Credentials are what the caller presented. The local apiserver's answer to a token tells whether it is proven.
	Credentials authn.Credentials
	// Set are the fields that Fairlead adds; they replace fields of the same name.
	Set []hpack.HeaderField
	// Strip tells which of the client's fields and trailers are not forwarded.
	Strip Strip
	// Timeout bounds the request. Zero: no bound of ours.
	Timeout time.Duration
}

const (
	// discoveryTimeout bounds GET /apis/<group>/<version> of a remote: kubectl waits on it (kubernetes/kubernetes#82172).
	discoveryTimeout = 5 * time.Second
	// loopHeader carries the names of the Fairleads that a request has passed.
	loopHeader = "fairlead-via"
)

// decide says where a request goes. With wait false it does no I/O and verifies no certificates, and reports
// false when it would need to (a connection's first request, a token or an authorization that is not cached):
// the caller then asks again, with wait, where waiting hurts nobody. It keeps nothing of h but strings.
//
// It fills d in place: a Decision is half a kilobyte, and copying it from hand to hand showed in profiles. The
// room of d.Set is used again.
func (p *Proxy) decide(ctx context.Context, d *Decision, h *Head, c *authn.Conn, wait bool) (known bool) {
	p.locate(d, h)
	if d.Err != nil {
		return true
	}
	if p.rejecting.Load() && !p.ownHealth(h.Path) {
		d.refuse(errShuttingDown())
		return true
	}
	h.steps += len(h.Fields)
	if wait {
		var err error
		if d.Credentials, err = p.read(ctx, h, c, h.Upgrade); err != nil {
			d.refuse(err)
			return true
		}
		d.Credentials.From = bound.Stranger(h.Remote)
	} else if d.Credentials, known = p.cfg.Authn.Read(c, h.Fields, h.Upgrade); !known {
		return false
	} else {
		d.Credentials.Now = h.Arrived // with wait, it may have waited already
	}
	switch d.Action {
	case ToHealth:
		return true
	case ToLocal:
		p.decideLocal(d, h)
		return true
	}
	return p.decideOwn(ctx, d, h, wait)
}

// locate says where a path leads, whoever asks.
//
//fairlead:loop
func (p *Proxy) locate(d *Decision, h *Head) {
	h.steps += 3*len(h.Path) + 4*len(h.RawQuery) // matched in two passes, decoded in one; see parseRequest for the query
	t := p.cfg.Table()
	m := t.Match(h.Path)
	*d = Decision{Set: d.Set[:0], Entry: m.Entry, route: m.Route, Request: parseRequest(h.Method, h.Path, h.RawQuery)}
	switch {
	case h.Method == http.MethodConnect:
		d.refuse(errConnect())
		return
	case p.isLoop(h):
		d.refuse(errLoop())
		return
	}
	switch m.Route {
	case registry.RouteInvalid:
		d.refuse(errInvalidPath())
		return
	case registry.RouteRefused:
		d.refuse(errProtected(m.Entry))
		return
	}
	if d.Action = p.actionOf(m.Route); m.Route == registry.RouteLocal && p.ownHealth(h.Path) {
		d.Action = ToHealth
		return
	}
	if !t.Complete() && m.Route != registry.RouteOwn && kubernetesPath(h.Path) {
		d.refuse(errNotReady())
	}
}

func (d *Decision) refuse(err error) { d.Action, d.Err = Refuse, err }

// decideLocal passes on what the caller presented: the local apiserver authenticates tokens and authorizes everything.
func (p *Proxy) decideLocal(d *Decision, h *Head) {
	switch d.Credentials.Kind {
	case authn.KindInvalid:
		// Passed on without its bad certificate, the request would be anonymous; kube-apiserver would have refused it.
		d.refuse(errUnauthorized())
		return
	case authn.KindCertificate, authn.KindFrontProxy:
		d.User = d.Credentials.User
	}
	d.LongRunning = h.Upgrade != "" || d.Request.longRunning(nil)
	d.Pool = p.cfg.Authn.Pool(&d.Credentials)
	d.Strip = p.strip(h, d.Pool)
	p.finish(d, h)
}

// decideOwn is for what Fairlead authenticates and authorizes itself: remotes, documents and pages.
func (p *Proxy) decideOwn(ctx context.Context, d *Decision, h *Head, wait bool) (known bool) {
	known, err := p.authenticate(ctx, d, wait)
	switch {
	case !known:
		return false
	case err != nil:
		d.refuse(err)
		return true
	case d.Credentials.Impersonates:
		d.Action = Impersonate
		return true
	}
	return p.admit(ctx, d, h, wait)
}

// admit decides for a user who is known: authorization first, so that a stranger does not even learn whether a backend is well.
func (p *Proxy) admit(ctx context.Context, d *Decision, h *Head, wait bool) (known bool) {
	known, err := p.authorize(ctx, d, wait)
	switch {
	case !known:
		return false
	case err != nil:
		d.refuse(err)
	default:
		p.dispatch(d, h)
	}
	return true
}

// dispatch decides for a user who may: whether the backend is well, and within which limits it is asked.
func (p *Proxy) dispatch(d *Decision, h *Head) {
	if d.Action == ToPage && p.cfg.Local == nil && strings.HasPrefix(h.Path, "/api") && d.route == registry.RouteLocal {
		d.refuse(errNotFound()) // an API that nobody serves
		return
	}
	if d.Action != ToRemote {
		d.LongRunning = longPage(h) || d.Request.longRunning(nil)
		return
	}
	e := d.Entry
	if e.Policy.Maintenance != "" || !e.Verdict.Available() {
		d.refuse(errUnavailable(e, time.Now()))
		return
	}
	d.LongRunning = h.Upgrade != "" || d.Request.longRunning(e.Policy.LongRunningSubresources)
	if !d.LongRunning {
		var err error
		if d.Timeout, err = requestTimeout(h, &d.Request, e.Policy.RequestTimeout); err != nil {
			d.refuse(err)
			return
		}
	}
	d.Strip = p.strip(h, authn.PoolRemote)
	p.finish(d, h)
}

// authenticate finds out who the caller is. It reports false when only a TokenReview could tell.
func (p *Proxy) authenticate(ctx context.Context, d *Decision, wait bool) (known bool, err error) {
	d.User, known = p.cfg.Authn.Cached(&d.Credentials, d.Request.Path)
	if !known && wait {
		if d.User, err = p.cfg.Authn.Review(ctx, &d.Credentials, d.Request.Path); err != nil {
			p.log.Debug("authenticating", "err", err)
			switch {
			case errors.Is(err, bound.ErrFull):
				return true, errReviews()
			case !errors.Is(err, authn.ErrUnauthenticated):
				return true, errAuthenticating()
			}
			return true, errUnauthorized()
		}
		return true, nil
	}
	if known && d.User == nil {
		return true, errUnauthorized()
	}
	return known, nil
}

// authorize finds out whether the caller may. It reports false when only a SubjectAccessReview could tell.
func (p *Proxy) authorize(ctx context.Context, d *Decision, wait bool) (known bool, err error) {
	a := d.attributes()
	verdict, known := p.cfg.Authz.Cached(&a)
	if known && verdict.Allowed {
		return true, nil
	}
	return p.authorizeSlow(ctx, d, verdict, known, wait)
}

// authorizeSlow is apart because what it does with the attributes has them allocated.
func (p *Proxy) authorizeSlow(ctx context.Context, d *Decision, verdict authz.Decision, known, wait bool) (bool, error) {
	a := d.attributes()
	if !known {
		if !wait {
			return false, nil
		}
		var err error
		if verdict, err = p.cfg.Authz.Authorize(ctx, &a); err != nil {
			if errors.Is(err, bound.ErrFull) {
				return true, errReviews()
			}
			p.log.Warn("authorizing", "user", d.User.GetName(), "err", err)
			return true, errAuthorizing()
		}
	}
	if !verdict.Allowed {
		return true, errForbidden(&a, verdict.Reason)
	}
	return true, nil
}

// attributes are what the authorizer is asked. The audit log asks again, when Action may have become Refuse: Entry still says what is remote.
func (d *Decision) attributes() authz.Attributes {
	r := &d.Request
	return authz.Attributes{
		User: d.User, Verb: r.Verb, ResourceRequest: r.IsResource, Group: r.Group, Version: r.Version, Namespace: r.Namespace, Resource: r.Resource,
		Subresource: r.Subresource, Name: r.Name, FieldSelector: r.FieldSelector, LabelSelector: r.LabelSelector, Path: r.Path, Remote: d.Entry != nil && !d.Entry.Local(), Now: d.Credentials.Now,
	}
}

// finish adds the fields that every forwarded request gets.
func (p *Proxy) finish(d *Decision, h *Head) {
	if d.User != nil {
		set, err := p.cfg.Authn.Headers(d.Set, d.User)
		if err != nil {
			p.log.Warn("asserting an identity", "err", err)
			d.refuse(errUnauthorized())
			return
		}
		d.Set = set
	}
	d.Set = p.forwarded(d.Set, h, d.Credentials.Kind == authn.KindFrontProxy)
}

// actionOf is where a route leads. What is the local apiserver's becomes a page of our own when there is none: its callers are authenticated and authorized
// here, by nobody else.
func (p *Proxy) actionOf(route registry.Route) Action {
	switch {
	case route == registry.RouteRefused || route == registry.RouteInvalid:
		return Refuse
	case route == registry.RouteRemote:
		return ToRemote
	case route == registry.RouteOwn:
		return ToPage
	case route == registry.RouteDocument && p.cfg.Documents != nil:
		return ToDocument
	case p.cfg.Local == nil:
		return ToPage
	}
	return ToLocal
}

// ownHealth are the health paths of the main port that answer for this process first; load balancers probe them. /livez is the local apiserver's, if
// there is one.
func (p *Proxy) ownHealth(path string) bool {
	rest, ok := strings.CutPrefix(path, "/readyz")
	if !ok {
		rest, ok = strings.CutPrefix(path, "/healthz")
	}
	if !ok && p.cfg.Local == nil {
		rest, ok = strings.CutPrefix(path, "/livez")
	}
	return ok && (rest == "" || rest[0] == '/')
}

// kubernetesPath reports whether a 404 for this path would be read as "the API is gone".
func kubernetesPath(path string) bool {
	return strings.HasPrefix(path, "/api") || strings.HasPrefix(path, "/openapi")
}

// longPage are pages of our own that stream.
func longPage(h *Head) bool { return h.Path == "/fairlead/events" }

//fairlead:loop
func (p *Proxy) isLoop(h *Head) bool {
	h.steps += len(h.Fields)
	for i := range h.Fields {
		if h.Fields[i].Name == loopHeader && strings.Contains(h.Fields[i].Value, p.instance) {
			return true
		}
	}
	return false
}

// requestTimeout is the policy's bound, or the smaller one of ?timeout=, or the fixed one of a remote's discovery document.
func requestTimeout(h *Head, r *Request, limit time.Duration) (time.Duration, error) {
	if !r.IsResource && strings.Count(strings.TrimSuffix(h.Path, "/"), "/") <= 3 {
		limit = min(limit, discoveryTimeout)
	}
	asked, err := timeoutParam(h.RawQuery)
	if err != nil {
		return 0, err
	}
	if asked > 0 {
		limit = min(limit, asked)
	}
	return limit, nil
}

// name is what errors call the place that a decision leads to.
func (d *Decision) name() string {
	if d.Action == ToRemote {
		return d.Entry.Name
	}
	return "the local apiserver"
}
