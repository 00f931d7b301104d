package proxy

import (
	"context"
	"net/http"
	"strings"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

// checkCaller refuses an invalid head, authenticates a token that this process verifies itself, and
// refuses users whom it must not impersonate. It reports false if it would have to block and wait
// is false.
func (p *Proxy) checkCaller(ctx context.Context, d *Decision, h *Head, conn *authn.Conn, wait bool) (known bool, err error) {
	if h.invalid != nil {
		return true, h.invalid
	}
	c := &d.Credentials
	issued, known := p.cfg.Authn.Issued(conn, c, false)
	if !known {
		if !wait {
			return false, nil
		}
		leave, err := turn(ctx, p.desk.heads, h) // a stranger's token of 180 KB takes 4 ms
		if err != nil {
			return true, err
		}
		issued, _ = p.cfg.Authn.Issued(conn, c, true)
		leave()
	}
	if issued {
		if known, err = p.authenticate(ctx, d, wait); !known || err != nil {
			return known, err
		}
		c.Kind, c.User = authn.KindIssued, d.User
	}
	if c.User == nil {
		return true, nil
	}
	if name, group := p.cfg.Authn.Refuses(c.User, false); name+group != "" {
		d.User = c.User
		return true, errNotImpersonated(c.User.GetName(), group)
	}
	return true, nil
}

// checkImpersonated refuses impersonated users for whom this process must not speak. It also
// refuses Impersonate- fields that the filter has left: they mean nothing to kube-apiserver now,
// but might in a later version.
func (p *Proxy) checkImpersonated(d *Decision, left http.Header) error {
	if p.cfg.Authn.Pool(&d.Credentials) != authn.PoolImpersonate {
		return nil
	}
	for name := range left {
		if strings.HasPrefix(strings.ToLower(name), "impersonate-") {
			return errNested(name)
		}
	}
	if name, group := p.cfg.Authn.Refuses(d.User, true); name+group != "" {
		return errNotImpersonated(d.User.GetName(), group)
	}
	return nil
}

// rejectsOwnCredential reports whether a 401 of the local apiserver rejects this process's
// credential rather than the caller's. A 401 from a pod, Service or node behind it is theirs.
func (d *Decision) rejectsOwnCredential(status int) bool {
	return status == http.StatusUnauthorized && d.Action == ToLocal && d.Pool == authn.PoolImpersonate && !d.Request.proxied()
}

// credentialRejected reports the rejected credential to Config.CredentialRejected, and returns the
// client's error.
func (p *Proxy) credentialRejected() error {
	if p.cfg.CredentialRejected != nil {
		p.cfg.CredentialRejected()
	}
	return errOwnCredential
}
