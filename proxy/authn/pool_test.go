package authn

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/check"
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
