package proxy

import (
	"context"
	"crypto/x509"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// ownCredential is the credential with which a world's proxy impersonates.
const ownCredential = "Bearer the-front-doors-own"

func (w *world) authenticator(t testing.TB, c worldConfig) *authn.Authenticator {
	t.Helper()
	verify := func(ca *pki.CA) func([]*x509.Certificate) ([][]*x509.Certificate, error) {
		return func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
			return peer[0].Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		}
	}
	cfg := authn.Config{
		VerifyClient: verify(w.client), VerifyFrontProxy: verify(w.authorities.front), Anonymous: c.anonymous,
		Review: func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			name, ok := strings.CutPrefix(token, "token-of-")
			if c.impersonate && !ok {
				name, ok = strings.CutPrefix(token, "jwt.of.")
			}
			if !ok {
				return nil, false, nil
			}
			return &authenticator.Response{User: &user.DefaultInfo{Name: name, UID: "uid-" + name, Groups: []string{"people"}, Extra: map[string][]string{"scope": {"all"}}}}, true, nil
		},
	}
	if c.impersonate {
		cfg.Impersonate = func() string { return ownCredential }
		cfg.Issued = func(token string) bool { return strings.HasPrefix(token, "jwt.") }
		cfg.RefuseUsers, cfg.RefuseGroups = []string{"system:serviceaccount:*"}, []string{"system:masters"}
	}
	return must.Get(authn.New(cfg))(t)
}

// newTestAuthorizer allows everybody whose name does not begin with "no", and lets only "boss"
// impersonate. It calls asked for each review.
func newTestAuthorizer(t testing.TB, asked func()) *authz.Authorizer {
	t.Helper()
	z := must.Get(authz.New(authz.Config{Review: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if asked != nil {
			asked()
		}
		name := a.GetUser().GetName()
		if strings.HasPrefix(name, "no") || strings.HasPrefix(a.GetVerb(), "impersonate") && name != "boss" {
			return authorizer.DecisionDeny, "", nil
		}
		return authorizer.DecisionAllow, "", nil
	}}))(t)
	return z
}
