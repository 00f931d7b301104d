package authn

import (
	"log/slog"
	"unique"
)

// Token is a bearer token that cannot be printed by accident: neither fmt (at any depth, exported or not, %#v included) nor slog nor an encoder shows
// it. The zero Token is no token.
//
// Tokens are canonical (package unique): equal ones are the same pointer, found by a hash with a secret seed and a comparison of the whole token. So a
// token is hashed once per request however often it is looked up, kept once however many caches know it, and is no part of any request's buffer. fmt
// prints a pointer inside of a struct as an address; a nested unexported string it would print past any String method.
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
