package authn

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"log/slog"
	"strings"
	"unique"
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

func (t Token) is(other Token) bool { return t == other }

// Secret returns the token itself.
func (t Token) Secret() string {
	if t.none() {
		return ""
	}
	return t.handle.Value()
}

// payer identifies an accepted token, however it is written: it is the hash of a JWT's claims.
// Base64 decoders ignore the last bits of each part, so that a JWT can be written in up to 4,096
// ways, and its user would be as many.
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
