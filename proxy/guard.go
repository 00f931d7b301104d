package proxy

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/bound"
)

// Guard lets a request through to one of Fairlead's own pages when the cluster says that its caller may have it: authenticated as on the front door,
// authorized as a non-resource URL, impersonation included. It serves the admin port. While no local apiserver can be asked, known scrapers may go on
// reading /metrics for five minutes.
func (p *Proxy) Guard(next http.Handler) http.Handler {
	impersonated := p.impersonation(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := exchangeOf(r.Context())
		x.decision.Impersonator = authz.Impersonator(r.Context())
		x.decision.User, _ = request.UserFrom(r.Context())
		p.servePermitted(w, r, next)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{p: p, head: headOf(r), conn: p.connOf(r)}
		credentials, err := p.read(r.Context(), x.head, x.conn, "")
		if err != nil {
			p.writeError(w, r, err)
			return
		}
		x.decision = Decision{
			Action: ToPage, Request: parseRequest(x.head.Method, x.head.Path, x.head.RawQuery), Credentials: credentials,
		}
		if p.vouched(&x.decision, time.Now()) {
			next.ServeHTTP(w, r)
			return
		}
		x.decision.Credentials.From = bound.Stranger(x.head.Remote)
		if _, err := p.authenticate(r.Context(), &x.decision, true); err != nil {
			p.writeError(w, r, err)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
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
