package proxy

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
)

// Explain returns decide's decision for a user with a client certificate, and the reason if the
// user may not send the request. ctx is that of a request over the same connection. It uses the
// same code without authentication, so an explanation cannot differ from the behavior. For the
// local apiserver, denied predicts its answer.
func (p *Proxy) Explain(ctx context.Context, h *Head, u user.Info) (d Decision, denied error) {
	p.locate(&d, h)
	if d.Err != nil {
		return d, nil
	}
	d.User = u
	switch d.Action {
	case ToHealth:
		return d, nil
	case ToLocal:
		d.Credentials = authn.Credentials{Kind: authn.KindCertificate, User: u}
		_, denied = p.authorize(ctx, &d, true)
		p.decideLocal(&d, h)
		var stay *backend.Stay
		if s := slotOf(ctx); s != nil {
			stay = s.stay
		}
		d.Server = p.cfg.Local.Which(stay, d.Request.what())
		return d, denied
	}
	_, denied = p.authorize(ctx, &d, true)
	p.dispatch(&d, h)
	return d, denied
}
