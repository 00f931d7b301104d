package proxy

import (
	"net/http"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

// identify reads the caller's credentials. It refuses an invalid head, authenticates a token that
// this process verifies itself, and refuses users whom it must not impersonate.
func (p *Proxy) identify(d *Decision, h *Head, conn *authn.Conn, now time.Time) error {
	c := &d.Credentials
	var known bool
	if *c, known = p.cfg.Authn.Read(conn, h.Fields, h.Upgrade); !known {
		return needCertificates
	}
	c.Now = now
	if h.invalid != nil {
		return h.invalid
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
	if c.User == nil {
		return nil
	}
	if name, group := p.cfg.Authn.Refuses(c.User, false); name+group != "" {
		d.User = c.User
		return errNotImpersonated(c.User.GetName(), group)
	}
	return nil
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
