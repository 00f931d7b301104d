package authn

import (
	"log/slog"
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

func (t Token) masked() string {
	if t.none() {
		return "<none>"
	}
	return "<masked>"
}

// String hides the token.
func (t Token) String() string { return t.masked() }

// GoString hides the token.
func (t Token) GoString() string { return t.masked() }

// LogValue hides the token.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.masked()) }
