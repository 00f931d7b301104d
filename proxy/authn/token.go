package authn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unique"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/websocket"

	"github.com/fairlead-proxy/fairlead/internal/memo"
)

// Token is a bearer token that cannot be printed by accident: neither fmt (at any depth, exported
// or not, even with %#v) nor slog nor an encoder shows it. The zero Token is no token.
//
// Tokens are canonical (package unique): equal tokens are the same pointer, found by a hash with a
// secret seed and a comparison of the whole token. So a token is hashed once per request, kept once
// for all caches, and shares no memory with a request's buffer. fmt prints a pointer inside a
// struct as an address; it would print a nested unexported string despite any String method.
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

// payer identifies an accepted token, however it is written: it is the hash of a JWT's claims. Base64 decoders ignore
// the last bits of each part, so that a JWT can be written in up to 4,096 ways, and its user would be as many.
func (t Token) payer() string {
	parts := strings.SplitN(t.Secret(), ".", jwtParts+1)
	if len(parts) == jwtParts {
		if claims, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil && bytes.HasPrefix(claims, []byte("{")) {
			sum := sha256.Sum256(claims)
			return string(sum[:])
		}
	}
	return t.Secret()
}

// jwtParts is the number of a JWT's parts: header, claims and signature.
const jwtParts = 3

// String hides the token.
func (t Token) String() string {
	if t.none() {
		return "<none>"
	}
	return "<masked>"
}

// GoString hides the token.
func (t Token) GoString() string { return t.String() }

// LogValue hides the token.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// bearerProtocol is the prefix of the WebSocket subprotocol with which a browser sends a token,
// because it cannot set Authorization.
const bearerProtocol = "base64url.bearer.authorization.k8s.io." //nolint:gosec // a prefix that everybody knows

// protocolToken returns the token in a WebSocket request's subprotocols; empty without an error if
// there is none. k8s.io/apiserver's errors quote no token.
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

// CutProtocol removes bearer tokens from one Sec-WebSocket-Protocol value and keeps the others in
// order. It must be applied to each such line, upgrade or not, except over the token pools; drop a
// line that becomes empty. A line without a token is returned unchanged.
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

// newCache returns a cache that keeps no token of more than a thousandth of its bytes.
func newCache[V any](c memo.Config) *cache[V] {
	c.Largest = c.Bytes / 1000
	return memo.New[Token, V](c)
}

// keep caches v for a token. generation was read before v was determined, and may be over by now.
func keep[V any](c *cache[V], t Token, v V, until time.Time, generation uint64) {
	c.Put(&memo.Entry[Token, V]{Key: t, Value: v, Size: len(t.Secret()), Until: until, Generation: generation})
}
