package proxy

import (
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

// Explain says what decide would say of a request by a user who is authenticated (by client certificate) and authorized. It is the same
// code with those two questions left out, so that an explanation cannot differ from what happens. It does no I/O.
func (p *Proxy) Explain(h *Head, u user.Info) Decision {
	var d Decision
	p.locate(&d, h)
	if d.Err != nil {
		return d
	}
	d.User = u
	switch d.Action {
	case ToHealth:
		return d
	case ToLocal:
		d.Credentials = authn.Credentials{Kind: authn.KindCertificate, User: u}
		p.decideLocal(&d, h)
		return d
	}
	p.dispatch(&d, h)
	return d
}
