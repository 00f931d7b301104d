package proxy

import (
	"cmp"
	"context"
	"hash/maphash"
	"net/http"
	"strconv"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/memo"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/busiest"
)

// callers counts requests by caller. Tokens that only the local apiserver knows have labels there,
// until their users are asked for, when they are shown.
type callers struct {
	*busiest.Callers
	seed   maphash.Seed
	labels *memo.Cache[authn.Token, string] // label or user
	tokens *memo.Cache[string, authn.Token] // by label
}

const (
	// maxLabels and labelBytes limit the tokens that are kept; both caches have the same ones.
	maxLabels  = 2048
	labelBytes = 2 << 20
	// labelTime is how long a token's user is remembered, although it may have been replaced: rows
	// are for people, and no older.
	labelTime = time.Hour
	// namesTime limits the reviews for an answer. In one second there is time for hundreds.
	namesTime = time.Second
)

func newCallers() callers {
	c := memo.Config{Entries: maxLabels, Bytes: labelBytes, Largest: labelBytes / 64}
	return callers{busiest.New(), maphash.MakeSeed(), memo.New[authn.Token, string](c), memo.New[string, authn.Token](c)}
}

// label returns what stands for a token.
func (c *callers) label(t authn.Token, now time.Time) string {
	if e := c.labels.Get(t, now); e != nil {
		return e.Value
	}
	label := "token " + strconv.FormatUint(maphash.Comparable(c.seed, t), 16)
	c.keep(t, label, now)
	c.tokens.Put(&memo.Entry[string, authn.Token]{Key: label, Value: t, Size: len(t.Secret()), Until: now.Add(labelTime)})
	return label
}

func (c *callers) keep(t authn.Token, name string, now time.Time) {
	c.labels.Put(&memo.Entry[authn.Token, string]{Key: t, Value: name, Size: len(t.Secret()), Until: now.Add(labelTime)})
}

// request returns what is counted of a request. Of a token that the local apiserver has not
// accepted yet the user is unknown, and stays so.
func (x *exchange) request(now time.Time) busiest.Request {
	h, d := x.head, &x.decision
	r := busiest.Request{
		Agent: cmp.Or(x.agent, h.agent()), Source: h.RemoteIP, Verb: d.Request.Verb, Group: d.Request.APIGroup, Resource: d.Request.Resource, Subresource: d.Request.Subresource,
		Server: "fairlead",
	}
	switch {
	case d.User != nil:
		r.User = d.User.GetName()
	case d.Credentials.Kind == authn.KindToken && x.p.cfg.Authn.Pool(&d.Credentials) == authn.PoolProven:
		r.User = x.p.callers.label(d.Credentials.Token, now)
	}
	if d.Impersonator != nil {
		r.Impersonator = d.Impersonator.GetName()
	}
	if !d.Request.IsResourceRequest {
		r.Resource = d.Request.Path
	}
	switch {
	case d.Entry != nil && !d.Entry.Local():
		r.Server = d.Entry.Name
	case d.leads == ToLocal:
		r.Server = "local"
	}
	return r
}

// begin counts a long-running request as open until count.
func (x *exchange) begin() {
	if x.decision.LongRunning {
		r := x.request(x.head.Arrived)
		x.open = x.p.callers.Begin(&r)
	}
}

// count counts a request that has ended.
func (x *exchange) count(e *ending) {
	x.open.End()
	x.open = nil
	r := x.request(x.head.Arrived.Add(e.Duration))
	r.Counts = busiest.Counts{Requests: 1, In: e.Received, Out: e.Sent}
	if !x.decision.LongRunning {
		r.Slowest = e.Duration.Seconds()
	}
	switch {
	case e.Status >= http.StatusInternalServerError:
		r.Errors = 1
	case e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden || e.Status == http.StatusTooManyRequests:
		r.Refused = 1
	}
	x.p.callers.Add(e.conn, &r)
}

// Busiest returns the n busiest callers of a view and a window of package busiest. It asks the
// local apiserver for the users of tokens among the first busiest.MaxRows.
func (p *Proxy) Busiest(ctx context.Context, view, window, order string, n int) *busiest.Answer {
	a := p.callers.Ask(view, window)
	a.Top(order, busiest.MaxRows)
	ctx, cancel := context.WithTimeout(ctx, namesTime)
	defer cancel()
	for i := range a.Rows {
		r := &a.Rows[i]
		r.User = p.callers.name(ctx, r.User, p.cfg.Authn)
	}
	a.Top(order, n)
	return a
}

// name returns the user of a label, or what is no label, or not known.
func (c *callers) name(ctx context.Context, label string, who *authn.Authenticator) string {
	now := time.Now()
	token := c.tokens.Get(label, now)
	if token == nil {
		return label
	}
	if e := c.labels.Get(token.Value, now); e != nil && e.Value != label {
		return e.Value
	}
	u, err := who.Review(ctx, &authn.Credentials{Kind: authn.KindToken, Token: token.Value}, bound.Source{User: label})
	if err != nil {
		return label
	}
	c.keep(token.Value, u.GetName(), now)
	return u.GetName()
}
