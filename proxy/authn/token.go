package authn

import (
	"context"
	"encoding/base64"
	"hash/maphash"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unique"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/websocket"

	"github.com/fairlead-proxy/fairlead/internal/memo"
)

// Token is a bearer token that cannot be printed by accident: neither fmt (at any depth, exported or not, even with
// %#v) nor slog nor an encoder shows it. The zero Token is no token. Tokens are canonical (package unique): equal
// tokens are the same pointer, found by a hash with a secret seed and a comparison of the whole token. So a token is
// hashed once per request, kept once for all caches, and shares no memory with a request's buffer. fmt prints a pointer
// inside a struct as an address; it would print a nested unexported string despite any String method.
type Token struct{ handle unique.Handle[string] }

func newToken(s string) Token {
	if s == "" {
		return Token{}
	}
	return Token{unique.Make(s)}
}

func (t Token) none() bool { return t == Token{} }

// Secret returns the token itself.
func (t Token) Secret() string {
	if t.none() {
		return ""
	}
	return t.handle.Value()
}

// payer identifies an accepted token, however it is written: pages show who reaches a limit, so it is a hash, with a
// seed because tokens of files can be guessed. Of a JWT it is that of the claims: base64 decoders ignore the last bits
// of each part, and kube-apiserver white space beside them, so that one user would be as many as they like.
func (t Token) payer() string {
	id := t.Secret()
	if parts := strings.SplitN(id, ".", 4); len(parts) == 3 { // a JWT's header, claims and signature
		claims, err := base64.RawURLEncoding.DecodeString(parts[1])
		if text := string(claims); err == nil && strings.HasPrefix(text, "{") {
			id = text
		}
	}
	return "token " + strconv.FormatUint(maphash.String(payers, id), 16)
}

var payers = maphash.MakeSeed() //nolint:gochecknoglobals // nothing writes it

// String hides the token.
func (t Token) String() string {
	if t.none() {
		return "<none>"
	}
	return "<masked>"
}

// GoString hides the token.
func (t Token) GoString() string { return t.String() }

// bearerProtocol begins the WebSocket subprotocol with which a browser sends a token: it cannot set Authorization.
const bearerProtocol = "base64url.bearer.authorization.k8s.io." //nolint:gosec // a prefix that everybody knows

// protocolToken returns the token in a WebSocket request's subprotocols, or nothing. Upstream's errors quote no token.
func protocolToken(h Head) (token string, err error) {
	r := &http.Request{Header: http.Header{"Connection": {"upgrade"}, "Upgrade": {"websocket"}}}
	for _, f := range h {
		if f.Name == fieldProtocol {
			r.Header.Add(f.Name, f.Value)
		}
	}
	take := authenticator.TokenFunc(func(_ context.Context, t string) (*authenticator.Response, bool, error) {
		token = t
		return nil, true, nil
	})
	_, _, err = websocket.NewProtocolAuthenticator(take).AuthenticateRequest(r)
	return token, err //nolint:wrapcheck // nobody reads it
}

// CutProtocol removes bearer tokens from one Sec-WebSocket-Protocol line and keeps the others in order. Apply it to
// each, upgrade or not, except over the token pools; drop a line that becomes empty. One without a token is unchanged.
func CutProtocol(line string) string {
	if !hasBearer(line) {
		return line
	}
	var kept []string
	for protocol := range strings.SplitSeq(line, ",") {
		// In any case and position: even if upstream would not accept it as a token, it must not appear in a log.
		if !hasBearer(protocol) {
			kept = append(kept, strings.TrimSpace(protocol))
		}
	}
	return strings.Join(kept, ",")
}

func hasBearer(s string) bool { return strings.Contains(strings.ToLower(s), bearerProtocol) }

// cache caches a value for each token. Tokens are canonical: comparing two takes one instruction.
type cache[V any] = memo.Cache[Token, V]

// newCache returns a cache that keeps no token of more than a thousandth of c.Bytes.
func newCache[V any](c memo.Config) *cache[V] {
	c.Largest = c.Bytes / 1000
	return memo.New[Token, V](c)
}

// keep caches v for a token. generation was read before v was determined, and may be over by now.
func keep[V any](c *cache[V], t Token, v V, until time.Time, generation uint64) {
	c.Put(&memo.Entry[Token, V]{Key: t, Value: v, Size: len(t.Secret()), Until: until, Generation: generation})
}

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

// proves reports whether a status can only follow authentication. A server that is overloaded, shuts down or cannot
// parse the request answers before it checks a token (kube-apiserver: 429 and 503 from filters outside that of
// authentication, 400 and 431 from net/http). So does one that answers a preflight (204, --cors-allowed-origins).
func proves(status int) bool {
	switch status {
	case http.StatusNoContent, http.StatusBadRequest, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge,
		http.StatusExpectationFailed, http.StatusTooManyRequests, http.StatusRequestHeaderFieldsTooLarge:
		return false
	}
	return status == http.StatusSwitchingProtocols || 200 <= status && status < 500
}

// suits reports whether FindIssuer's result is about the tokens of c, and up to date.
func (a *Authenticator) suits(i, c *Credentials) bool {
	return i != nil && i.Same(c) && i.generation == a.cfg.ReviewGeneration()
}

// maxPeek limits the tokens whose issuer is read on the loop: that takes up to 30 µs a kilobyte. Most are shorter.
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
		c.Kind = KindInvalid // if it were forwarded, the cluster would try it after the first one fails
	}
	return found.issued, true
}

// FindIssuer returns what Issued lacks: the tokens of c, and whether Config.Issued claims them. Long ones take long.
func (a *Authenticator) FindIssuer(conn *Conn, c *Credentials) *Credentials {
	i := &Credentials{Kind: c.Kind, Token: c.Token, second: c.second, generation: a.cfg.ReviewGeneration()}
	i.issued = a.cfg.Issued(c.Token.Secret())
	i.alsoIssued = !i.issued && !c.second.none() && a.cfg.Issued(c.second.Secret())
	if conn != nil && len(c.Token.Secret())+len(c.second.Secret()) <= maxRemembered {
		conn.issuer.Store(i)
	}
	return i
}
