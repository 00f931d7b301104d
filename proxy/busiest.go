package proxy

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/busiest"
	"github.com/fairlead-proxy/fairlead/internal/memo"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// counted returns what is counted of a request. The user of a token that nobody has accepted stays unknown.
func (x *exchange) counted() busiest.Row {
	h, d, r := x.head, &x.decision, &x.decision.Request
	row := busiest.Row{
		Who: busiest.Who{
			Agent: cmp.Or(x.agent, h.agent()), Source: h.RemoteIP,
			Verb: r.Verb, Resource: r.Resource, Server: "fairlead",
		},
		Group: r.APIGroup, Subresource: r.Subresource,
	}
	if !r.IsResourceRequest {
		row.Resource = r.Path
	}
	switch {
	case d.Entry != nil && !d.Entry.Local():
		row.Server = d.Entry.Name
	case d.leads == ToLocal:
		row.Server = "local"
	}
	// A longer token is not kept for up to an hour: no service account's is.
	const maxToken = 4 << 10
	switch c, u := &d.Credentials, cmp.Or(d.User, d.user); { // d.user is known if a rule asks for it
	case u != nil:
		row.User = u.GetName()
	case c.Kind == authn.KindToken && len(c.Token.Secret()) <= maxToken && x.p.cfg.Authn.Pool(c) == authn.PoolProven:
		row.Token = c.Token
	}
	return row
}

// begin counts a long-running request as open until count.
func (x *exchange) begin() {
	if x.decision.LongRunning {
		row := x.counted()
		x.close = x.p.callers.Begin(&row)
	}
}

func (x *exchange) count(o *engine.Outcome, code int) {
	if x.close != nil {
		x.close()
		x.close = nil
	}
	row := x.counted()
	if row.Requests, row.In, row.Out = 1, o.Received, o.Sent; !x.decision.LongRunning {
		row.Slowest = o.Duration.Seconds()
	}
	switch {
	case code >= http.StatusInternalServerError:
		row.Errors = 1
	case code == http.StatusUnauthorized || code == http.StatusForbidden || code == http.StatusTooManyRequests:
		row.Refused = 1
	}
	x.p.callers.Add(x.front.number, &row)
}

const (
	nameTime = time.Hour // how long a token's user is remembered: rows are no older
	// maxNamed limits the rows of an answer, whose tokens' users are asked for within namesTime.
	maxNamed, namesTime = 100, time.Second
)

// Busiest returns the n busiest callers of a view and a window of package busiest, in an order. Nil means that there is
// no such, or that n is not from 1 to maxNamed. It asks the local apiserver whose the tokens are that only that knows.
func (p *Proxy) Busiest(ctx context.Context, view, window, order string, n int) *busiest.Answer {
	a := p.callers.Ask(view, window)
	if a == nil || n < 1 || n > maxNamed || !a.Top(order, maxNamed) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, namesTime)
	defer cancel()
	for i := range a.Rows {
		if token, ok := a.Rows[i].Token.(authn.Token); ok {
			a.Rows[i].User = cmp.Or(p.nameOf(ctx, token), a.Rows[i].User)
		}
	}
	a.Top(order, n) // rows of one user are one now
	return a
}

func (p *Proxy) nameOf(ctx context.Context, token authn.Token) string {
	now := time.Now()
	if e := p.names.Get(token, now); e != nil {
		return e.Value
	}
	u, err := p.cfg.Authn.Review(ctx, &authn.Credentials{Kind: authn.KindToken, Token: token},
		bound.Source{User: "busiest"})
	if err != nil {
		return ""
	}
	name, size := u.GetName(), len(token.Secret())
	p.names.Put(&memo.Entry[authn.Token, string]{Key: token, Value: name, Size: size, Until: now.Add(nameTime)})
	return name
}
