package authn

import (
	"net/http"
	"time"
)

// Pool says over which pool credentials go to the local apiserver. KindInvalid goes nowhere: it is answered with 401.
func (a *Authenticator) Pool(c *Credentials) Pool {
	switch c.Kind {
	case KindFrontProxy, KindCertificate:
		return PoolCertificate
	case KindToken:
		// With two tokens nobody can tell which of them was accepted.
		if !c.Provable() {
			break
		}
		if _, _, ok := a.proven.get(c.Token, c.Now); ok {
			return PoolProven
		}
	}
	return PoolUnproven
}

// Provable reports whether credentials are one token, which the local apiserver's answer can prove.
func (c *Credentials) Provable() bool { return c.Kind == KindToken && c.second.none() }

// Proven reports whether the local apiserver lately accepted a token.
func (a *Authenticator) Proven(t Token) bool {
	_, _, ok := a.proven.get(t, time.Time{})
	return ok
}

// Seen notes how the local apiserver answered a request that came with these credentials. A token is proven by an answer that only an authenticated
// request gets, and is forgotten, as is who it belongs to, with a 401.
func (a *Authenticator) Seen(c *Credentials, status int) {
	if !c.Provable() {
		return
	}
	switch {
	case status == http.StatusUnauthorized:
		a.proven.drop(c.Token)
		a.known.drop(c.Token)
	case proves(status):
		now := time.Now()
		// A token in use is rewritten once in half its time, not with every answer.
		if _, until, ok := a.proven.get(c.Token, now); !ok || until.Sub(now) < a.cfg.ProvenTTL/2 {
			a.proven.put(c.Token, struct{}{}, now.Add(a.cfg.ProvenTTL), 0)
		}
	}
}

// proves reports whether a status can only follow authentication. A server that is overloaded, shutting down or unable to read the request says so
// before it looks at a token (kube-apiserver: 429 and 503 from filters that wrap the authentication filter, 400 and 431 from net/http),
// and so does one that answers a preflight (204, --cors-allowed-origins).
func proves(status int) bool {
	switch status {
	case http.StatusNoContent, http.StatusBadRequest, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusExpectationFailed,
		http.StatusTooManyRequests, http.StatusRequestHeaderFieldsTooLarge:
		return false
	}
	return status == http.StatusSwitchingProtocols || 200 <= status && status < 500
}
