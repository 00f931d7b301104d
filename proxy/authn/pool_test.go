package authn

import (
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

// A JWT has one payer, however it is written. Other tokens are their own.
func TestPayerOfToken(t *testing.T) {
	jwt := newToken("e30.e30.AA").payer()
	for _, token := range []string{"e31.e33.AB", "e30.e30."} {
		check.Same(t, jwt, newToken(token).payer(), "payer of %s", token)
	}
	for _, token := range []string{"e30.e30", "e30.e30.AA.AA", "e30.AA.AA", "e30.e30=.AA", "opaque", ".."} {
		check.Same(t, token, newToken(token).payer(), "payer of %s", token)
	}
	if newToken("e30.eyB9.AA").payer() == jwt {
		t.Error("other claims have the same payer")
	}
}

// Users that are known without the local apiserver are asserted to it: in Impersonate-*, if there
// is a credential for it.
func TestKnownUsers(t *testing.T) {
	u := &user.DefaultInfo{Name: "alice"}
	for kind, want := range map[Kind]user.Info{KindFrontProxy: u, KindCertificate: u, KindIssued: u, KindInvalid: nil} {
		c := &Credentials{Kind: kind, User: want}
		a := newAuthenticator(t, Config{})
		if got, known := a.Cached(c, ""); got != want || !known {
			t.Errorf("kind %d: %v, known %v", kind, got, known)
		}
		if want != nil {
			check.Same(t, PoolCertificate, a.Pool(c), "pool of kind %d", kind)
			check.Same(t, PoolImpersonate, newImpersonator(t).Pool(c), "pool of kind %d, with a credential", kind)
		}
	}
}

// The issuer of a token is determined once for a connection and configuration, off the loop for a
// long token. A token of our issuers is the only one that counts.
func TestIssued(t *testing.T) {
	var asked, generation uint64
	a := newAuthenticator(t, Config{
		ReviewGeneration: func() uint64 { return generation },
		Issued:           func(token string) bool { asked++; return strings.HasPrefix(token, "jwt.") },
	})
	long, longest := "jwt."+strings.Repeat("x", maxPeek), "jwt."+strings.Repeat("x", maxRemembered)
	on, stale := &Conn{}, &Credentials{} // of no token
	for _, tc := range []struct {
		name          string
		conn          *Conn
		kind          Kind
		token, second string
		wait          bool
		is, known     bool
		asked         uint64 // so far
	}{
		{"first", on, KindToken, "jwt.a.b", "bob", false, true, true, 1},
		{"again", on, KindToken, "jwt.a.b", "bob", false, true, true, 1},
		{"another", on, KindToken, "alice", "bob", false, false, true, 3}, // both tokens are checked
		{"long", on, KindToken, long, "bob", false, false, false, 3},
		{"long, with time", on, KindToken, long, "bob", true, true, true, 4},
		{"long, again", on, KindToken, long, "bob", false, true, true, 4},
		{"long, later", on, KindToken, long, "bob", false, false, false, 4},
		{"longest", on, KindToken, longest, "bob", true, true, true, 5},
		{"longest, which is not remembered", on, KindToken, longest, "bob", true, true, true, 6},
		{"second", nil, KindToken, "alice", "jwt.a.b", false, false, true, 8},
		{"second, long", nil, KindToken, "alice", long, false, false, false, 8},
		{"second, long, with time", nil, KindToken, "alice", long, true, false, true, 10},
		{"anonymous", nil, KindNone, "jwt.a.b", "", false, false, true, 10},
		{"certificate", nil, KindCertificate, "jwt.a.b", "", false, false, true, 10},
		{"front proxy", nil, KindFrontProxy, "jwt.a.b", "", false, false, true, 10},
		{"invalid", nil, KindInvalid, "jwt.a.b", "", false, false, true, 10},
	} {
		if tc.name == "long, later" {
			generation++
		}
		c := Credentials{Kind: tc.kind, Token: newToken(tc.token), second: newToken(tc.second)}
		is, known := a.Issued(tc.conn, &c, stale)
		if !known && tc.wait { // off the loop
			is, known = a.Issued(tc.conn, &c, a.FindIssuer(tc.conn, &c))
		}
		if is != tc.is || known != tc.known || asked != tc.asked || c.second.none() != (tc.is || tc.second == "") {
			t.Errorf("%s: %v, known %v, asked %d times, alone %v", tc.name, is, known, asked, c.second.none())
		}
		if known && strings.HasPrefix(tc.second, "jwt.") {
			tc.kind = KindInvalid
		}
		check.Same(t, tc.kind, c.Kind, "%s: kind", tc.name)
	}
}
