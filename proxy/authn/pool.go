package authn

import (
	"net/http"
	"time"
)

// provenTTL is how long a token stays proven after the local apiserver last accepted it: a client that sends a request
// every few seconds stays proven, and each revoked token is refused at most once on a proven connection.
const provenTTL = time.Minute

// Pool returns the pool of the local apiserver for credentials. KindInvalid is not forwarded: it is
// answered with 401. It sets the Payer of a proven token.
func (a *Authenticator) Pool(c *Credentials) Pool {
	switch c.Kind {
	case KindFrontProxy, KindCertificate, KindIssued:
		if a.cfg.Impersonate != nil {
			return PoolImpersonate
		}
		return PoolCertificate
	}
	if c.Provable() {
		if e := a.proven.Get(c.Token, c.Now); e != nil {
			c.Payer = e.Value
			return PoolProven
		}
	}
	return PoolUnproven
}

// Provable reports whether the local apiserver's response can prove the credentials: they are a
// token. Of two it is unknown which one was accepted.
func (c *Credentials) Provable() bool { return c.Kind == KindToken && c.second.none() }

// Seen records the local apiserver's status for a request with these credentials. A status that
// only authenticated requests get proves the token. A 401 drops the token and its cached user.
func (a *Authenticator) Seen(c *Credentials, status int) {
	if !c.Provable() {
		return
	}
	switch {
	case status == http.StatusUnauthorized:
		a.proven.Drop(c.Token)
		a.known.Drop(c.Token)
	case proves(status):
		now := time.Now()
		// A token in use is renewed once in half its TTL, not with every response.
		if e := a.proven.Get(c.Token, now); e == nil || e.Until.Sub(now) < provenTTL/2 {
			keep(a.proven, c.Token, c.Token.payer(), now.Add(provenTTL), 0)
		}
	}
}

// proves reports whether a status can only follow authentication. A server that is overloaded,
// shutting down or unable to parse the request answers before it checks a token (kube-apiserver:
// 429 and 503 from filters outside the authentication filter, 400 and 431 from net/http). So does
// one that answers a preflight (204, --cors-allowed-origins).
func proves(status int) bool {
	switch status {
	case http.StatusNoContent, http.StatusBadRequest, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusExpectationFailed,
		http.StatusTooManyRequests, http.StatusRequestHeaderFieldsTooLarge:
		return false
	}
	return status == http.StatusSwitchingProtocols || 200 <= status && status < 500
}

// suits reports whether FindIssuer's result is about the tokens of c, and up to date.
func (a *Authenticator) suits(i, c *Credentials) bool {
	return i != nil && i.Same(c) && i.generation == a.cfg.ReviewGeneration()
}

// maxPeek limits the tokens whose issuer is read on the loop: that takes up to 30 µs a kilobyte,
// and most tokens are shorter.
const maxPeek = 2 << 10

// Issued reports whether the credentials are a token that Review verifies itself; then a second
// token is ignored. found is FindIssuer's result for the request, if known was false before.
func (a *Authenticator) Issued(conn *Conn, c *Credentials, found *Credentials) (is, known bool) {
	if a.cfg.Issued == nil || c.Kind != KindToken {
		return false, true
	}
	if conn != nil && !a.suits(found, c) {
		found = conn.issuer.Load()
	}
	if !a.suits(found, c) {
		if len(c.Token.Secret())+len(c.second.Secret()) > maxPeek {
			return false, false
		}
		found = a.FindIssuer(conn, c)
	}
	switch {
	case found.issued:
		c.second = Token{}
	case found.alsoIssued:
		// If it were forwarded, the cluster would try it after the first one fails.
		c.Kind = KindInvalid
	}
	return found.issued, true
}

// FindIssuer returns what Issued lacks: the tokens of c, and whether Config.Issued claims them. It
// takes long for long tokens.
func (a *Authenticator) FindIssuer(conn *Conn, c *Credentials) *Credentials {
	i := &Credentials{Kind: c.Kind, Token: c.Token, second: c.second, generation: a.cfg.ReviewGeneration()}
	i.issued = a.cfg.Issued(c.Token.Secret())
	i.alsoIssued = !i.issued && !c.second.none() && a.cfg.Issued(c.second.Secret())
	if conn != nil && len(c.Token.Secret())+len(c.second.Secret()) <= maxRemembered {
		conn.issuer.Store(i)
	}
	return i
}
