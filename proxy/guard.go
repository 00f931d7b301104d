package proxy

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/registry/bound"
)

// Guard protects one of Fairlead's own pages on the admin port. Callers are authenticated as on the
// front door and authorized for a non-resource URL, including impersonation. While the local
// apiserver is down, known scrapers may read /metrics for five more minutes.
func (p *Proxy) Guard(page http.Handler) http.Handler {
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if x := exchangeOf(r.Context()); !longPage(x.head) && !x.decision.Request.longRunning(nil) {
			defer p.limitReading(w).Stop()
		}
		page.ServeHTTP(w, r)
	})
	impersonated := p.impersonation(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := exchangeOf(r.Context())
		x.decision.User, _ = request.UserFrom(r.Context())
		if err := p.checkImpersonated(&x.decision, r.Header); err != nil {
			p.writeError(w, r, err)
			return
		}
		p.servePermitted(w, r, next)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{p: p, head: headOf(r, time.Now()), conn: p.connOf(r)}
		credentials, err := p.read(r.Context(), x.head, x.conn, "")
		if err != nil {
			p.writeError(w, r, err)
			return
		}
		credentials.From = bound.Stranger(x.head.Remote)
		x.decision = Decision{
			Action: ToPage, Request: parseRequest(x.head.Method, x.head.Path, x.head.RawQuery), Credentials: credentials,
		}
		if _, err := p.checkCaller(r.Context(), &x.decision, x.head, x.conn, true); err != nil {
			p.writeError(w, r, err)
			return
		}
		ctx := context.WithValue(r.Context(), exchangeKey{}, x)
		r = r.WithContext(ctx)
		if p.cfg.Local != nil && p.cfg.Local.Ready() != nil && p.scrapers.knows(&x.decision, time.Now()) {
			next.ServeHTTP(w, r)
			return
		}
		if _, err := p.authenticate(ctx, &x.decision, true); err != nil {
			p.writeError(w, r, err)
			return
		}
		if x.decision.Credentials.Impersonates {
			impersonated.ServeHTTP(w, p.asUser(r, x))
			return
		}
		p.servePermitted(w, r, next)
	})
}

func (p *Proxy) servePermitted(w http.ResponseWriter, r *http.Request, next http.Handler) {
	x := exchangeOf(r.Context())
	if _, err := p.authorize(r.Context(), &x.decision, true); err != nil {
		p.writeError(w, r, err)
		return
	}
	p.scrapers.remember(&x.decision, time.Now())
	next.ServeHTTP(w, p.asUser(r, x))
}
