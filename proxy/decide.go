package proxy

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// Action is how a request is answered.
type Action uint8

// The actions. Refuse is the zero value: an empty Decision lets no request through.
const (
	Refuse      Action = iota // answer with Decision.Err
	ToLocal                   // forward to the local apiserver over Decision.Pool
	ToRemote                  // forward to Decision.Entry's backend
	ToDocument                // answer with a merged document of this process
	ToPage                    // answer with a page: below /fairlead/, and all that is left without a local apiserver
	ToHealth                  // answer /readyz or /healthz: this process's readiness first, then the local apiserver's
	Impersonate               // pass it to the impersonation filter, which decides again for the requested user
)

// Decision says where a request goes, as which user, with which fields, within which limits; over both protocols.
type Decision struct {
	Action Action // how the request is answered
	// route is the route of the path in the table of Entry. A request keeps both, whatever table is current when it is
	// served. It does not keep the table, which a watch would hold in memory until it ends.
	route registry.Route
	// Pool is the pool over which the request is sent: a remote's, or that of the local apiserver
	// that matches the credentials. It decides which of the client's fields are forwarded.
	Pool         authn.Pool
	LongRunning  bool            // such requests have no deadline, and a limit of their own
	Err          error           // for Refuse: it carries a metav1.Status, or is a Need
	Server       string          // the local apiserver of a request that is explained, and why. Empty otherwise
	Entry        *registry.Entry // the table's entry for the path. Nil means that the table has none
	Request      Request         // in Kubernetes' terms
	User         user.Info       // the effective user. Nil means that the local apiserver authenticates the caller
	Impersonator user.Info       // the caller that impersonates User. Nil means no impersonation
	// Credentials are the caller's. The local apiserver's response to a token shows whether the token is valid.
	Credentials authn.Credentials
	Set         []hpack.HeaderField // fields that Fairlead adds; they replace fields of the same name
	Timeout     time.Duration       // limits the request, from its arrival. Zero: Fairlead sets no limit
	verdict     authz.Decision      // the authorizer's, for the audit log. It counts only if the authorizer was asked
	asked       bool
	rules       *policy.Gates // those in force when the request came. Nil means none, or that they were asked
	// Rule is the rule that matches, DryRun the first before it that would, were it no dry run. Nil means none.
	Rule, DryRun *policy.Gate
	asker        *policy.Gate       // the rule of who asks to be somebody else, unless it allows. Nil means none
	entered      *policy.Gate       // the last that was asked
	user         user.Info          // the owner of a token that the request is forwarded with. Nil means unknown
	behind       bool               // set for requests of the cluster's own aggregator (Config.Behind)
	leads        Action             // of the path, whoever asks
	issuer       *authn.Credentials // looked up by settle, as learned
	learned      *learned
}

const loopHeader = "fairlead-via" // lists the Fairleads that a request has passed

// decide decides where a request goes, as far as that is known without waiting: it returns d.Err, which is a Need if it
// is not. settle then looks that up and decides again. now is the time, zero if caches must read the clock. It keeps
// nothing of h but strings. It fills d in place and reuses d.Set's room: copying half a kilobyte showed in profiles.
func (p *Proxy) decide(d *Decision, h *Head, c *authn.Conn, now time.Time) error {
	if _, again := d.Err.(Need); again { //nolint:errorlint // nobody wraps it
		d.Action, d.Err, d.Pool, d.User = d.leads, nil, 0, nil // by the same table, and its rules
	} else {
		p.locate(d, h)
	}
	if d.Err != nil {
		return d.Err
	}
	err := p.identify(d, h, c, now)
	switch {
	case err != nil || d.Action == ToHealth:
	case d.behind:
		p.decideBehind(d, h)
	case d.Action == ToLocal:
		p.decideLocal(d, h)
	default:
		err = p.decideOwn(d, h)
	}
	if err != nil {
		d.refuse(err)
	}
	return d.Err
}

const maxParams = 10_000 // limits those of a query: of more, newer Go servers read none, and older ones all

// locate decides where a path leads, without regard to the caller.
func (p *Proxy) locate(d *Decision, h *Head) {
	t := p.cfg.Tables.Table()
	m := t.Match(h.Path)
	*d = Decision{Set: d.Set[:0], learned: d.learned, Entry: m.Entry, route: m.Route, rules: t.Rules()}
	d.Request = parseRequest(h.Method, h.Path, h.RawQuery)
	switch {
	case h.Method == http.MethodConnect:
		d.refuse(errConnect)
	case strings.Count(h.RawQuery, "&") >= maxParams:
		d.refuse(errParams)
	case strings.Contains(h.list(loopHeader), p.instance):
		d.refuse(errLoop)
	case m.Route == registry.RouteInvalid:
		d.refuse(errInvalidPath(h.Path))
	case m.Route == registry.RouteRefused:
		d.refuse(errProtected(m.Entry))
	}
	if d.Err != nil {
		return
	}
	if m.Route == registry.RouteLocal && p.cfg.Claimed != nil && p.cfg.Claimed(d.Request.Path) {
		m.Route, d.route = registry.RouteDocument, registry.RouteDocument
	}
	if d.Action = p.actionOf(m.Route); m.Route == registry.RouteLocal && p.ownHealth(h.Path) {
		d.Action = ToHealth
	}
	d.leads = d.Action
	// A client would take a 404 for these paths as "the API is gone".
	api := strings.HasPrefix(h.Path, "/api") || strings.HasPrefix(h.Path, "/openapi")
	switch {
	case api && !t.Complete() && m.Route != registry.RouteOwn:
		d.refuse(errNotReady)
	case api && d.Action == ToLocal && !p.cfg.Local.Told():
		d.refuse(errUntold)
	case p.rejecting.Load() && !p.ownHealth(h.Path) && // kube-apiserver's exceptions, too
		!strings.HasPrefix(h.Path, "/livez") && !strings.HasPrefix(h.Path, "/metrics"):
		d.refuse(errShuttingDown)
	}
}

func (d *Decision) refuse(err error) { d.Action, d.Err = Refuse, err }

// decideLocal passes the caller's credentials on: the local apiserver authenticates tokens and authorizes all requests.
func (p *Proxy) decideLocal(d *Decision, h *Head) {
	switch d.Credentials.Kind {
	case authn.KindInvalid:
		// Forwarded without its bad certificate, the request would be anonymous; kube-apiserver would have refused it.
		d.refuse(errUnauthorized)
		return
	case authn.KindCertificate, authn.KindFrontProxy, authn.KindIssued:
		d.User = d.Credentials.User
		if d.Credentials.Impersonates && p.cfg.Authn.Pool(&d.Credentials) == authn.PoolImpersonate {
			d.Action = Impersonate // the request will carry one identity only, so the permission is checked here
			return
		}
	case authn.KindToken, authn.KindNone:
		var err error
		if d.user, err = p.bearer(d); err != nil {
			d.refuse(err)
			return
		}
	}
	p.dispatchLocal(d, h)
}

// dispatchLocal chooses the pool of the local apiserver, once the user is decided.
func (p *Proxy) dispatchLocal(d *Decision, h *Head) {
	d.LongRunning = h.Upgrade != "" || d.Request.longRunning(nil)
	d.Pool = p.cfg.Authn.Pool(&d.Credentials)
	p.rule(d, h, cmp.Or(d.User, d.user))
	p.finish(d, h)
}

// decideBehind decides for the cluster's own aggregator. It has authorized the request, and knows
// Fairlead as an extension server: of what it sends here, and of nothing else.
func (p *Proxy) decideBehind(d *Decision, h *Head) {
	d.User = d.Credentials.User
	switch {
	case d.Action == ToRemote && d.Entry.Front != "":
		p.dispatch(d, h)
	case d.Action == ToRemote || d.route == registry.RouteLocal && d.Request.APIGroup != "":
		// The table is behind the cluster's. After a 404 the namespace controller would leave such objects behind.
		d.refuse(errNotReady)
	case d.Action != ToDocument:
		d.refuse(errNotFound)
	}
}

// decideOwn decides for remotes, documents and pages, for which Fairlead itself authenticates and
// authorizes. It authorizes first, so that a stranger does not learn whether a backend is healthy.
func (p *Proxy) decideOwn(d *Decision, h *Head) error {
	if err := p.authenticate(d); err != nil {
		return err
	}
	if d.Credentials.Impersonates {
		d.Action = Impersonate
		return nil
	}
	if err := p.authorize(d); err != nil {
		return err
	}
	p.dispatch(d, h)
	return nil
}

// dispatch decides for an authorized user: whether the backend is available, and the request's limits.
func (p *Proxy) dispatch(d *Decision, h *Head) {
	if d.route == registry.RouteHidden ||
		d.Action == ToPage && d.route == registry.RouteLocal && strings.HasPrefix(h.Path, "/api") {
		d.refuse(errNotFound) // hidden, or an API that nothing serves: there is no local apiserver
		return
	}
	if d.Action != ToRemote {
		d.LongRunning = longPage(h) || d.Request.longRunning(nil)
		p.rule(d, h, d.User)
		return
	}
	if len(d.Entry.Further) > 0 { // a policy gives the APIService several servers
		q := d.Request.ForPolicy(d.User, h.get("user-agent"))
		d.Entry = d.Entry.For(&q)
	}
	e := d.Entry
	if e.Settings.Maintenance != "" || !e.Verdict.Available() {
		d.refuse(errUnavailable(e, time.Now()))
		return
	}
	d.LongRunning = h.Upgrade != "" || d.Request.longRunning(e.Settings.LongRunningSubresources)
	if !d.LongRunning {
		var err error
		if d.Timeout, err = requestTimeout(h.RawQuery, &d.Request, e.Settings.RequestTimeout); err != nil {
			d.refuse(err)
			return
		}
	}
	d.Pool = authn.PoolRemote
	p.rule(d, h, d.User)
	p.finish(d, h)
}

func (p *Proxy) authenticate(d *Decision) error {
	if l := d.learned; l != nil && l.user != nil && l.caller.Same(&d.Credentials) {
		d.User = l.user
		return nil
	}
	var known bool
	switch d.User, known = p.cfg.Authn.Cached(&d.Credentials, d.Request.Path); {
	case !known:
		return needUser
	case d.User == nil:
		return errUnauthorized
	}
	return nil
}

func (p *Proxy) authorize(d *Decision) error {
	a := d.attributes()
	if l := d.learned; l != nil && l.asked != nil && l.asked.Equal(&a) {
		d.verdict, d.asked = l.verdict, true
	} else if d.verdict, d.asked = p.cfg.Authz.Cached(&a); !d.asked {
		return needVerdict
	}
	if !d.verdict.Allowed {
		return errForbidden(d)
	}
	return nil
}

func (d *Decision) attributes() authz.Attributes {
	return authz.Attributes{
		User:        d.User,
		RequestInfo: request.RequestInfo(d.Request),
		Remote:      d.Entry != nil && !d.Entry.Local(),
		Now:         d.Credentials.Now,
	}
}

// finish adds the fields of every forwarded request.
func (p *Proxy) finish(d *Decision, h *Head) {
	if d.User != nil {
		set, err := p.cfg.Authn.Assert(d.Set, d.User, d.Pool)
		if err != nil {
			if p.warns.CompareAndSwap(false, true) { // one in 10 s: a line for each request would fill the log
				go func() {
					p.log.Warn("asserting an identity", "err", err)
					time.AfterFunc(10*time.Second, func() { p.warns.Store(false) })
				}()
			}
			if d.refuse(errUnauthorized); p.cfg.Authn.Unfit() != nil {
				d.refuse(errUnfit)
			}
			return
		}
		d.Set = set
	}
	d.Set = p.forwarded(d.Set, h, d.Credentials.Kind == authn.KindFrontProxy)
}

// actionOf returns the action of a route. Without a local apiserver, its routes lead to pages of
// this process, which then authenticates and authorizes the callers.
func (p *Proxy) actionOf(route registry.Route) Action {
	switch {
	case route == registry.RouteRefused || route == registry.RouteInvalid:
		return Refuse
	case route == registry.RouteRemote:
		return ToRemote
	case route == registry.RouteDocument && p.cfg.Documents != nil:
		return ToDocument
	case route == registry.RouteOwn || route == registry.RouteHidden || p.cfg.Local == nil:
		return ToPage
	}
	return ToLocal
}

// ownHealth reports whether a path is a health path that this process answers first; load balancers
// probe them on the main port. /livez is the local apiserver's, if there is one.
func (p *Proxy) ownHealth(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return first == "readyz" || first == "healthz" || first == "livez" && p.cfg.Local == nil
}

// longPage reports whether a page of this process streams, by its path on either port.
func longPage(h *Head) bool {
	page := strings.TrimPrefix(h.Path, "/fairlead")
	return page == "/events" || page == "/tap"
}

func (d *Decision) name() string {
	if d.Action == ToRemote {
		return d.Entry.Name
	}
	return "the local apiserver"
}

// identify reads the caller's credentials. It refuses an invalid head, authenticates a token that
// this process verifies itself, and refuses users whom it must not impersonate.
func (p *Proxy) identify(d *Decision, h *Head, conn *authn.Conn, now time.Time) error {
	c := &d.Credentials
	var known bool
	// Looked at before the certificates: their CA may be in the ConfigMap. Forwarded, the request would be anonymous.
	unfit := conn != nil && len(conn.Peer) > 0 && p.cfg.Authn.Unfit() != nil
	if *c, known = p.cfg.Authn.Read(conn, h.Fields, h.Upgrade, now); !known {
		return needCertificates
	}
	if h.invalid != nil {
		return h.invalid
	}
	if unfit && d.Action != ToHealth && (c.Kind == authn.KindNone || c.Kind == authn.KindInvalid) {
		return errUnfit
	}
	issued, known := p.cfg.Authn.Issued(conn, c, d.issuer)
	if !known {
		return needIssuer
	}
	if issued {
		if err := p.authenticate(d); err != nil {
			return err
		}
		c.Kind, c.User = authn.KindIssued, d.User
	}
	if d.behind = p.cfg.Behind != nil && c.Kind == authn.KindFrontProxy; d.behind || c.User == nil {
		return nil // behind, the user is asserted to extension servers only
	}
	if name, group := p.cfg.Authn.Refuses(c.User, false); name+group != "" {
		d.User = c.User
		return errNotImpersonated(c.User.GetName(), group)
	}
	return nil
}

// checkImpersonated refuses impersonated users for whom this process must not speak. It also refuses Impersonate-
// fields that the filter has left: they mean nothing to kube-apiserver now, but might in a later version.
func (p *Proxy) checkImpersonated(d *Decision, left http.Header) error {
	if p.cfg.Authn.Pool(&d.Credentials) != authn.PoolImpersonate {
		return nil
	}
	for name := range left {
		if strings.HasPrefix(strings.ToLower(name), "impersonate-") {
			return apierrors.NewBadRequest(name[:min(len(name), maxCause)] + " is not a supported impersonation header")
		}
	}
	if name, group := p.cfg.Authn.Refuses(d.User, true); name+group != "" {
		return errNotImpersonated(d.User.GetName(), group)
	}
	return nil
}

// rejectedOwn returns the client's error if a 401 of the local apiserver rejects this process's credential rather than
// the caller's, whom we have authenticated, and reports one that impersonates to Config.CredentialRejected. A 401 of a
// server behind it says nothing about ours, nor one to a write: that may be an admission policy's reason, Unauthorized.
func (p *Proxy) rejectedOwn(d *Decision, status int) error {
	if status != http.StatusUnauthorized || d.Action != ToLocal || d.User == nil ||
		d.Pool != authn.PoolImpersonate && p.limits.of(d.Request.Verb).write || // one that we renew is told at once
		d.Request.proxied() || d.Request.ofKubelet() || d.Entry != nil && d.Entry.Aggregated() {
		return nil
	}
	if p.cfg.CredentialRejected != nil && d.Pool == authn.PoolImpersonate {
		p.cfg.CredentialRejected()
	}
	return errOwnCredential
}

// impersonation is k8s.io/apiserver's filter. A request with Impersonate-* fields continues as the user that it names,
// without those fields, if its sender may impersonate that user (by legacy or constrained impersonation). If not, it is
// answered with 400, 403 or 500 in a form that the client accepts; of a failed review it shows what forbidden says.
func (p *Proxy) impersonation(next http.Handler) http.Handler {
	authorize := p.cfg.Authz.Upstream().Authorize
	may := func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := authorize(ctx, a)
		repeated := len(a.GetVerb()) + len(a.GetPath()) + len(a.GetSubresource()) + len(a.GetName())
		if full(err) {
			err = forbidden(errReviews)
		} else if err != nil {
			p.log.Debug("authorizing an impersonation", "err", err)
			err = forbidden(errAuthorizing)
		} else if decision != authorizer.DecisionAllow && repeated > maxEchoed {
			err = errLong
		}
		return decision, reason, err
	}
	return impersonation.WithConstrainedImpersonation(next, authorizer.AuthorizerFunc(may),
		metainternalversionscheme.Codecs)
}

// asUser puts the user and the request's attributes where k8s.io/apiserver's filters expect them.
func (x *exchange) asUser(r *http.Request) *http.Request {
	ctx := request.WithUser(r.Context(), x.decision.User)
	return r.WithContext(request.WithRequestInfo(ctx, (*request.RequestInfo)(&x.decision.Request)))
}

// serveImpersonated runs behind the impersonation filter: the context's user is whom the caller may impersonate.
func (p *Proxy) serveImpersonated(w http.ResponseWriter, r *http.Request) {
	x := exchangeOf(r.Context())
	as, ok := request.UserFrom(r.Context())
	if !ok {
		p.writeError(w, r, errUnauthorized)
		return
	}
	d := &x.decision
	if x.head.get("impersonate-user") != "" { // the filter's own test: without a name it does nothing
		d.Impersonator = d.User
	}
	d.User, d.Action = as, p.actionOf(d.route)
	if err := p.checkImpersonated(d, r.Header); err != nil {
		d.refuse(err)
	} else if d.Action == ToLocal {
		p.dispatchLocal(d, x.head)
	} else if err := p.permit(r.Context(), d); err != nil {
		d.refuse(err)
	} else {
		p.dispatch(d, x.head)
	}
	x.named()
	x.authorized()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // of the filter's answers
	p.serveDecision(w, r, x)
}
