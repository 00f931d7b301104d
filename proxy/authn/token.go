package authn

import (
	"log/slog"
	"unsafe"
)

// Token is a bearer token that cannot be printed by accident: neither fmt (at any depth, exported or not, %#v included) nor slog nor an encoder shows
// it. The zero Token is no token. It is a string's own bytes behind a pointer, because fmt prints a nested unexported string past any String method.
type Token struct {
	data *byte
	n    int
}

func newToken(s string) Token { return Token{data: unsafe.StringData(s), n: len(s)} }

// Secret returns the token itself.
func (t Token) Secret() string { return unsafe.String(t.data, t.n) }

func (t Token) masked() string {
	if t.n == 0 {
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
