package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func (w *world) guard(t *testing.T, p *Proxy, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := w.server()
	s.Config.Handler, s.Config.ConnContext = p.Guard(h), p.ConnContext
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// dial opens an HTTP/1.1 connection to a server of the world, for requests that no client library
// would send, with a client certificate if pair is not nil.
func (w *world) dial(t *testing.T, to *httptest.Server, pair *pki.Pair) net.Conn {
	t.Helper()
	tc := &tls.Config{RootCAs: w.serving.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	if pair != nil {
		tc.Certificates = []tls.Certificate{pair.TLS()}
	}
	c := must.Get(tls.Dial("tcp", to.Listener.Addr().String(), tc))(t)
	must.Do(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	t.Cleanup(func() { c.Close() })
	return c
}

// say sends text over a connection of its own, and returns the head of the answer, the reader for
// the rest, and the connection.
func (w *world) say(t *testing.T, text string) (*http.Response, *bufio.Reader, net.Conn) {
	t.Helper()
	conn := w.dial(t, w.front, nil)
	must.Get(io.WriteString(conn, text))(t)
	br := bufio.NewReader(conn)
	return must.Get(http.ReadResponse(br, nil))(t), br, conn
}

func (w *world) raw(t *testing.T, line, rest string) (*http.Response, *bufio.Reader, net.Conn) {
	t.Helper()
	return w.say(t, line+" HTTP/1.1\r\nHost: front.example.com\r\nAuthorization: Bearer token-of-bob\r\n"+rest)
}

// request makes a request to the front door whose target is sent unchanged.
func (w *world) request(t *testing.T, method, target string, body io.Reader) *http.Request {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, w.front.URL, body))(t)
	path, query, has := strings.Cut(target, "?")
	r.URL.Opaque, r.URL.RawQuery, r.URL.ForceQuery = path, query, has
	r.URL.Opaque = "//" + r.URL.Host + path
	return r
}

func (w *world) by(t *testing.T, authorization, method, target string, body io.Reader) *http.Request {
	t.Helper()
	r := w.request(t, method, target, body)
	r.Header.Set("Authorization", authorization)
	return r
}

func (w *world) as(t *testing.T, user, method, target string, body io.Reader) *http.Request {
	t.Helper()
	return w.by(t, "Bearer token-of-"+user, method, target, body)
}

// ownCredential is the credential with which a world's proxy impersonates.
const ownCredential = "Bearer the-front-doors-own"

func verifier(ca *pki.CA) func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
	return func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
		return peer[0].Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	}
}

func (w *world) authenticator(t testing.TB, c worldConfig) *authn.Authenticator {
	t.Helper()
	cfg := authn.Config{
		VerifyClient: verifier(w.client), VerifyFrontProxy: verifier(w.authorities.front),
		Review: func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			name, ok := strings.CutPrefix(token, "token-of-")
			if c.impersonate && !ok {
				name, ok = strings.CutPrefix(token, "jwt.of.")
			}
			if c.tokenReviewed != nil {
				if err := c.tokenReviewed(); err != nil {
					return nil, false, err
				}
			}
			if !ok {
				return nil, false, nil
			}
			return &authenticator.Response{User: &user.DefaultInfo{Name: name, UID: "uid-" + name, Groups: []string{"people"}, Extra: map[string][]string{"scope": {"all"}}}}, true, nil
		},
	}
	if c.forgetsTokens {
		cfg.TokenTTL = -1
	}
	if c.unread != "" {
		cfg.Target = func() (*authn.HeaderNames, bool) { return nil, false }
		if c.unread == "ca" {
			cfg.VerifyClient, cfg.VerifyFrontProxy = nil, nil
		}
	}
	if c.impersonate {
		cfg.Impersonate = func() string { return ownCredential }
		cfg.Issued = func(token string) bool { return strings.HasPrefix(token, "jwt.") }
		cfg.RefuseUsers, cfg.RefuseGroups = []string{"system:serviceaccount:*"}, []string{"system:masters"}
		cfg.GroupPrefixes = c.groups
	}
	return must.Get(authn.New(cfg))(t)
}

// newTestAuthorizer allows everybody whose name does not begin with "no", and lets only "boss" impersonate.
func newTestAuthorizer(t testing.TB, c worldConfig) *authz.Authorizer {
	t.Helper()
	cfg := authz.Config{Review: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if c.reviewed != nil {
			if err := c.reviewed(); err != nil {
				return authorizer.DecisionNoOpinion, "", err
			}
		}
		name := a.GetUser().GetName()
		if strings.HasPrefix(name, "no") || strings.HasPrefix(a.GetVerb(), "impersonate") && name != "boss" {
			return authorizer.DecisionDeny, "not you", nil
		}
		return authorizer.DecisionAllow, "because", nil
	}}
	if c.forgetful {
		cfg.AllowTTL, cfg.DenyTTL = -1, -1
	}
	return must.Get(authz.New(cfg))(t)
}
