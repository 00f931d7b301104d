package proxy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/internal/memo"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// Guard protects a page of ours on the admin port. Callers are authenticated as on the front door, and authorized for
// its URL, also with impersonation. While the local apiserver is down, known scrapers may read /metrics for 5 min.
func (p *Proxy) Guard(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x, conn := &exchange{p: p, head: headOf(r, time.Now()), page: page}, slotOf(r.Context()).of(r.TLS)
		defer (&recorder{request: r, exchange: x}).done() //nolint:contextcheck // for panics; r carries it
		x.head.Upgrade = ""                               // a page has none
		d := &x.decision
		d.Action, d.route = ToPage, registry.RouteOwn
		d.Request = parseRequest(x.head.Method, x.head.Path, x.head.RawQuery)
		ctx, known := context.WithValue(r.Context(), exchangeKey{}, x), false
		r = r.WithContext(ctx)
		err := p.settle(ctx, d, x.head, conn, func() error {
			err := p.identify(d, x.head, conn, time.Time{})
			known = err == nil && p.cfg.Local != nil && p.cfg.Local.Ready() != nil && p.knows(d, time.Now())
			if err != nil || known {
				return err
			}
			return p.decideOwn(d, x.head)
		})
		if !known {
			p.remember(d, err, time.Now())
		}
		if err != nil {
			d.refuse(err)
		}
		p.serveDecision(w, r, x)
	})
}

const (
	// scraperMemory is how long an admitted scraper is known: else an outage of the local apiserver has no metrics.
	scraperMemory = 5 * time.Minute
	maxScrapers   = 16 // limits the remembered scrapers, the latest: a few Prometheus replicas and an agent
	metricsPath   = "/metrics"
)

// scraper identifies a caller by its credentials: another token, or a certificate of another user, is another caller.
type scraper struct {
	token             authn.Token
	user, uid, groups string
}

// scraperOf returns the caller of a scrape, and false for other requests and if it impersonates.
func scraperOf(d *Decision) (s scraper, ok bool) {
	switch c, u := &d.Credentials, d.Credentials.User; {
	case d.Request.Path != metricsPath || d.Request.Verb != "get" || c.Impersonates:
	case c.Kind == authn.KindToken || c.Kind == authn.KindIssued:
		return scraper{token: c.Token}, true
	case c.Kind == authn.KindFrontProxy && len(u.GetExtra()) > 0: // the extra fields may limit the user
	case c.Kind == authn.KindCertificate || c.Kind == authn.KindFrontProxy:
		return scraper{user: u.GetName(), uid: u.GetUID(), groups: strings.Join(u.GetGroups(), "\n")}, true
	}
	return s, false
}

func (p *Proxy) remember(d *Decision, err error, now time.Time) {
	switch s, ok := scraperOf(d); {
	case ok && err == nil:
		p.scrapers.Put(&memo.Entry[scraper, struct{}]{Key: s, Size: 1, Until: now.Add(scraperMemory)})
	case ok && (apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)): // not for a review that failed
		p.scrapers.Drop(s)
	}
}

// knows reports whether the caller of a scrape was allowed within the last scraperMemory.
func (p *Proxy) knows(d *Decision, now time.Time) bool {
	s, ok := scraperOf(d)
	return ok && p.scrapers.Get(s, now) != nil
}

// Explain returns decide's decision for a user with a certificate, and why the user may not send the request, or a rule
// refuses it, or that is not known. ctx is that of a request over the same connection, whose source is the default. But
// for authentication it is the same code, so it cannot differ. For the local apiserver, denied predicts it.
func (p *Proxy) Explain(ctx context.Context, method, target, agent, source string,
	u user.Info) (d Decision, denied error) {
	fields := []hpack.HeaderField{{Name: "user-agent", Value: agent}}
	h := &Head{Head: wire.Head{Method: method, Fields: fields}, RemoteIP: source}
	x := exchangeOf(ctx)
	if x != nil && source == "" {
		h.RemoteIP = x.head.RemoteIP
	}
	h.SetTarget(target)
	// As identify, which lets the cluster's own tokens pass: those of ServiceAccounts, or of who asks about itself.
	name, group := p.cfg.Authn.Refuses(u, strings.HasPrefix(u.GetName(), "system:serviceaccount:"))
	token := x != nil && x.decision.Credentials.Kind == authn.KindToken && x.decision.User.GetName() == u.GetName()
	if p.locate(&d, h); d.Err == nil && name+group != "" && !token && p.cfg.Behind == nil { // no aggregator
		d.refuse(errNotImpersonated(u.GetName(), group))
	} else if d.Err == nil {
		d.User = u
	}
	if d.Err != nil || d.Action == ToHealth {
		return d, nil
	}
	if denied = p.permit(ctx, &d); d.learned != nil && d.learned.why != nil {
		denied = fmt.Errorf("%w: %w", denied, d.learned.why)
	}
	if d.leads == ToLocal {
		d.Credentials = authn.Credentials{Kind: authn.KindCertificate, User: u}
		p.decideLocal(&d, h)
		d.Server = p.cfg.Local.Which(slotOf(ctx).stay, d.Request.what())
	} else {
		p.dispatch(&d, h)
	}
	switch {
	case denied != nil && d.leads != ToLocal:
		d.Rule, d.DryRun = nil, nil // it does not get so far
	case d.Err == nil && d.Rule != nil && d.Rule.Action == policy.Deny:
		denied = errRule(d.Rule, 0) // before the local apiserver authorizes
	case d.Action == ToRemote && !p.room(&d, d.source(h)):
		d.refuse(errBusy(d.name()))
	}
	return d, denied
}
