package proxy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/memo"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

const (
	// callerTime is how long a request waits for its token's user: rules stop nobody because a review does not come.
	callerTime    = time.Second
	uncertainTime = 5 * time.Second // how long later requests with a token whose review did not come do not wait
	// maxUncertain bounds such tokens, by number and bytes.
	maxUncertain, uncertainBytes = 4096, 8 << 20
)

// bearer returns the user of a token that the local apiserver will authenticate, or of no credentials, if a rule looks
// at users. Its error is needBearer, or a 401 for two tokens, or a bad one: nobody is stopped whose user is unknown.
func (p *Proxy) bearer(d *Decision) (user.Info, error) {
	if d.rules == nil || !d.rules.ByUser || d.spared(d.rules) {
		return nil, nil
	}
	if d.Credentials.Kind == authn.KindNone {
		return p.cfg.Authn.Nobody(), nil
	}
	// Of two the local apiserver takes the first that is good there then, whatever a cache or another apiserver says.
	if !d.Credentials.Provable() {
		return nil, errUnauthorized
	}
	if l := d.learned; l != nil && l.bearer && l.caller.Same(&d.Credentials) {
		return l.user, nil
	}
	if u, known := p.cfg.Authn.Cached(&d.Credentials, d.Request.Path); known && u == nil {
		return nil, errUnauthorized // forwarded, it may be good again: who may write its Secret would pass unknown
	} else if known {
		return u, nil
	}
	if c := &d.Credentials; p.unsure.Get(c.Token, c.Now) != nil && !p.cfg.Authn.Answering(callerTime) {
		p.metrics.unknown.Inc()
		d.learned = &learned{caller: *c, bearer: true} // Proxy.ServeHTTP, which may decide again, counts it no more
		return nil, nil
	}
	return nil, needBearer
}

// askBearer looks up the user of a token. While others are answered, a flood of reviews makes nobody unknown.
func (p *Proxy) askBearer(ctx context.Context, d *Decision, h *Head) (err error) {
	l := d.learned
	l.caller, l.bearer = d.Credentials, true
	ctx, cancel := context.WithTimeout(ctx, callerTime)
	defer cancel()
	l.user, err = p.cfg.Authn.Review(ctx, &l.caller, bound.Stranger(h.Remote))
	if err == nil || errors.Is(err, authn.ErrUnauthenticated) {
		return err
	}
	p.log.Debug("reviewing a token for a rule", "err", err)
	if errors.Is(err, context.Canceled) || p.cfg.Authn.Answering(callerTime) { // or who leaves early would be unknown
		return bound.ErrFull
	}
	token, until := d.Credentials.Token, time.Now().Add(uncertainTime)
	p.unsure.Put(&memo.Entry[authn.Token, struct{}]{Key: token, Size: len(token.Secret()), Until: until})
	p.metrics.unknown.Inc()
	return nil
}

// impersonated returns whom the local apiserver will take for the caller if that may impersonate.
func (h *Head) impersonated() user.Info {
	var groups []string
	for i := range h.Fields {
		if f := &h.Fields[i]; strings.EqualFold(f.Name, "impersonate-group") {
			groups = append(groups, f.Value)
		}
	}
	return Impersonated(h.get("impersonate-user"), "", groups)
}

// Impersonated returns a user with the groups that k8s.io/apiserver/pkg/endpoints/filters/impersonation adds.
func Impersonated(name, uid string, groups []string) user.Info {
	switch namespace, _, err := serviceaccount.SplitUsername(name); {
	case len(groups) > 0:
	case err == nil:
		groups = serviceaccount.MakeGroupNames(namespace)
	case strings.HasPrefix(name, "system:node:"): // if the apiserver constrains impersonation
		groups = []string{user.NodesGroup}
	}
	everybody := user.AllAuthenticated
	if name == user.Anonymous || slices.Contains(groups, user.AllUnauthenticated) {
		everybody = user.AllUnauthenticated
	}
	return &user.DefaultInfo{Name: name, UID: uid, Groups: append(slices.Clip(groups), everybody)}
}
