package authn

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/reviews"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

type authority struct{ *pki.CA }

func newAuthority(name string) *authority { return &authority{pki.NewCA(name)} }

// issue makes a client certificate that expires after the duration (negative: already expired).
func (a *authority) issue(subject pki.Leaf, ends time.Duration) []*x509.Certificate {
	subject.NotBefore, subject.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(ends)
	return []*x509.Certificate{a.Issue(subject).Certificate}
}

func (a *authority) options() x509.VerifyOptions {
	return x509.VerifyOptions{Roots: a.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// verify does what package certs does: it verifies, and checks the names if there are any.
func (a *authority) verify(names ...string) func([]*x509.Certificate) ([][]*x509.Certificate, error) {
	opts := a.options()
	return func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
		o := opts
		o.CurrentTime = time.Now()
		chains, err := peer[0].Verify(o)
		if err == nil && len(names) > 0 && !slices.Contains(names, peer[0].Subject.CommonName) {
			return nil, errors.New("the name is not allowed")
		}
		return chains, err
	}
}

// tokens is an apiserver that accepts tokens with the prefix "good", and counts reviews.
type tokens struct {
	*reviews.Count
	fail atomic.Bool
}

func newTokens() *tokens { return &tokens{Count: &reviews.Count{}} }

func (s *tokens) review(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if err := s.Wait(ctx); err != nil {
		return nil, false, err
	}
	switch {
	case s.fail.Load() || token == "fails":
		return nil, false, errors.New("connection refused")
	case token == "panic":
		panic("boom")
	case token == "nothing":
		return nil, true, nil
	case token == "userless":
		return &authenticator.Response{}, true, nil
	case token == "nobody":
		return &authenticator.Response{User: &user.DefaultInfo{}}, true, nil
	case len(token) >= 4 && token[:4] == "good":
		return &authenticator.Response{User: &user.DefaultInfo{
			Name: "owner of " + token, UID: "uid", Groups: []string{"tokens"}, Extra: map[string][]string{"authentication.kubernetes.io/credential-id": {"JTI=1"}},
		}}, true, nil
	}
	return nil, false, nil
}

func newAuthenticator(t testing.TB, cfg Config) *Authenticator {
	t.Helper()
	return must.Get(New(cfg))(t)
}

// proven reports whether the local apiserver recently accepted a token.
func proven(a *Authenticator, t Token) bool { return a.proven.Get(t, time.Time{}) != nil }

func head(nv ...string) Head {
	var h Head
	for i := 0; i < len(nv); i += 2 {
		h = append(h, hpack.HeaderField{Name: nv[i], Value: nv[i+1]})
	}
	return h
}

func headOf(from http.Header) (h Head) {
	for name, values := range from {
		for _, v := range values {
			h = append(h, hpack.HeaderField{Name: strings.ToLower(name), Value: v})
		}
	}
	return h
}

func bearer(token string) Head { return head("authorization", "Bearer "+token) }

func describe(u user.Info) string {
	if u == nil {
		return "nobody"
	}
	return fmt.Sprintf("%s/%s%q%v", u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra())
}

// read calls Verify if it must, which gets its turn at once, and then Read.
func read(a *Authenticator, c *Conn, h Head, upgrade string) Credentials {
	got, known := a.Read(c, h, upgrade, time.Time{})
	if !known {
		_ = a.Verify(c, func() (func(), error) { return func() {}, nil })
		got, _ = a.Read(c, h, upgrade, time.Time{})
	}
	return got
}
