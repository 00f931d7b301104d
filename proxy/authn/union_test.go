package authn

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

type setup struct {
	name          string
	client, front *authority
	names         []string
	headers       HeaderNames
	anonymous     bool
}

// upstream builds the union as kube-apiserver does (pkg/kubeapiserver/authenticator.Config.New):
// the same parts in the same order.
func (s *setup) upstream(token authenticator.Token) authenticator.Request {
	var all []authenticator.Request
	if s.front != nil {
		h := s.headers
		if len(h.Username)+len(h.UID)+len(h.Group)+len(h.ExtraPrefix) == 0 {
			h = HeaderNames{Username: []string{"X-Remote-User"}, Group: []string{"X-Remote-Group"}, ExtraPrefix: []string{"X-Remote-Extra-"}}
		}
		all = append(all, headerrequest.NewDynamicVerifyOptionsSecure(x509request.StaticVerifierFn(s.front.options()), headerrequest.StaticStringSlice(s.names),
			headerrequest.StaticStringSlice(h.Username), headerrequest.StaticStringSlice(h.UID),
			headerrequest.StaticStringSlice(h.Group), headerrequest.StaticStringSlice(h.ExtraPrefix)))
	}
	if s.client != nil {
		all = append(all, x509request.NewDynamic(x509request.StaticVerifierFn(s.client.options()), x509request.CommonNameUserConversion))
	}
	all = append(all, bearertoken.New(token), websocket.NewProtocolAuthenticator(token))
	out := group.NewAuthenticatedGroupAdder(union.New(all...))
	if s.anonymous {
		out = union.NewFailOnError(out, anonymous.NewAuthenticator(nil))
	}
	return out
}

func (s *setup) ours(t *testing.T, review *tokens) *Authenticator {
	cfg := Config{Review: review.review, RequestHeaders: s.headers, Anonymous: s.anonymous}
	if s.client != nil {
		cfg.VerifyClient = s.client.verify()
	}
	if s.front != nil {
		cfg.VerifyFrontProxy = s.front.verify(s.names...)
	}
	return newAuthenticator(t, cfg)
}

func protocolOf(token string) string {
	return bearerProtocol + base64.RawURLEncoding.EncodeToString([]byte(token))
}

// Every combination of credentials has the same result as with k8s.io/apiserver's own authenticators.
func TestUnion(t *testing.T) {
	t.Parallel()
	client, front, foreign := newAuthority("client-ca"), newAuthority("front-ca"), newAuthority("foreign-ca")
	alice := pki.Leaf{CommonName: "alice", Organizations: []string{"dev", "ops"}}
	certificates := map[string][]*x509.Certificate{
		"none":             nil,
		"client":           client.issue(alice, time.Hour),
		"client uid":       client.issue(pki.Leaf{CommonName: "alice", Organizations: alice.Organizations, UIDs: []string{"u-1"}}, time.Hour),
		"client two uids":  client.issue(pki.Leaf{CommonName: "alice", Organizations: alice.Organizations, UIDs: []string{"u-1", "u-2"}}, time.Hour),
		"client no name":   client.issue(pki.Leaf{Organizations: []string{"dev"}}, time.Hour),
		"client anonymous": client.issue(pki.Leaf{CommonName: "system:anonymous"}, time.Hour),
		"client unauth":    client.issue(pki.Leaf{CommonName: "x", Organizations: []string{"system:unauthenticated"}}, time.Hour),
		"expired":          client.issue(alice, -time.Hour),
		"foreign":          foreign.issue(alice, time.Hour),
		"front":            front.issue(pki.Leaf{CommonName: "front-proxy-client"}, time.Hour),
		"front other":      front.issue(pki.Leaf{CommonName: "somebody"}, time.Hour),
		"front expired":    front.issue(pki.Leaf{CommonName: "front-proxy-client"}, -time.Hour),
	}
	headers := map[string]http.Header{
		"none":       {},
		"user":       {"X-Remote-User": {"bob"}},
		"all":        {"X-Remote-User": {"bob", "carol"}, "X-Remote-Uid": {"7"}, "X-Remote-Group": {"g1", "", "g2"}, "X-Remote-Extra-Scopes%2fall": {"a", "", "b"}, "X-Remote-Extra-Bad%zz": {"c"}, "X-Remote-Extra-": {"d"}},
		"no user":    {"X-Remote-Group": {"system:masters"}, "X-Remote-Extra-A": {"b"}},
		"empty user": {"X-Remote-User": {"", "bob"}, "X-Remote-Group": {"system:masters"}},
		"other name": {"X-Other-User": {"dave"}, "X-Other-Group": {"h"}, "X-Remote-User": {""}, "X-Remote-Group": {"g"}},
		"underscore": {"X_remote_user": {"bob"}, "X_Remote_Group": {"system:masters"}},
		"anonymous":  {"X-Remote-User": {"system:anonymous"}},
		"unauth":     {"X-Remote-User": {"bob"}, "X-Remote-Group": {"system:unauthenticated"}},
		"has auth":   {"X-Remote-User": {"bob"}, "X-Remote-Group": {"system:authenticated"}},
	}
	authorizations := map[string][]string{
		"none": nil, "good": {"Bearer good"}, "bad": {"Bearer bad"}, "basic": {"Basic Z29vZA=="}, "empty": {""}, "word": {"Bearer"},
		"space": {"Bearer "}, "two spaces": {"Bearer  good"}, "more": {"Bearer good more"}, "case": {"bEaReR good"}, "padded": {"  Bearer good\t"},
		"first counts": {"Basic x", "Bearer good"}, "first is good": {"Bearer good", "Bearer bad"}, "first is empty": {"", "Bearer good"},
		"tab": {"Bearer\tgood"}, "token": {"good"}, "error": {"Bearer fails"},
	}
	protocols := map[string][]string{
		"none": nil, "good": {protocolOf("good-ws") + ", v4.channel.k8s.io"}, "good second line": {"a,b", protocolOf("good-ws")},
		"bad": {protocolOf("bad") + ",x"}, "alone": {protocolOf("good-ws")}, "two": {protocolOf("good-ws"), protocolOf("good-ws") + ",x"},
		"malformed": {bearerProtocol + "%%%,x"}, "padding": {bearerProtocol + "Z29vZA==,x"}, "no text": {bearerProtocol + "_w,x"}, "empty": {bearerProtocol + ",x"},
		"empty alone": {bearerProtocol}, "case": {"BASE64URL.bearer.authorization.k8s.io.Z29vZA,x"},
	}
	upgrades := map[string]http.Header{
		"socket": {"Connection": {"keep-alive", "Upgrade"}, "Upgrade": {"WebSocket"}},
		"spdy":   {"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}},
	}
	other := HeaderNames{Username: []string{"x-remote-user", "X-Other-User"}, UID: []string{"X-Remote-Uid"}, Group: []string{"X-Other-Group", "X-Remote-Group"}, ExtraPrefix: []string{"X-Remote-Extra-", "x-remote-"}}
	setups := []setup{
		{name: "usual", client: client, front: front, names: []string{"front-proxy-client"}},
		{name: "usual anonymous", client: client, front: front, names: []string{"front-proxy-client"}, anonymous: true},
		{name: "any name", client: client, front: front, headers: other},
		{name: "no front proxy", client: client, anonymous: true},
		{name: "no client", front: front, names: []string{"front-proxy-client"}, anonymous: true},
		{name: "neither", anonymous: true},
		{name: "one CA", client: client, front: client, names: []string{"alice"}},
	}
	for _, s := range setups {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			review := newTokens()
			a, want := s.ours(t, review), s.upstream(authenticator.TokenFunc(review.review))
			for cn, peer := range certificates {
				conn := &Conn{Peer: peer}
				for hn, h := range headers {
					for an, auth := range authorizations {
						for pn, proto := range protocols {
							for un, up := range upgrades {
								if un == "spdy" && pn != "good" && pn != "malformed" || !worthwhile(cn, hn, an, pn) {
									continue
								}
								r := request(peer, h, up, auth, proto)
								compare(t, a, want, conn, r, cn+" | "+hn+" | "+an+" | "+pn+" | "+un)
							}
						}
					}
				}
			}
		})
	}
}

// worthwhile omits redundant combinations: rare credentials are tried one at a time, and in pairs
// that one authenticator reads.
func worthwhile(cert, header, auth, protocol string) bool {
	rare := 0
	for _, name := range []string{cert, header, auth, protocol} {
		switch name {
		case "none", "client", "foreign", "front", "user", "all", "good", "bad", "malformed":
		default:
			rare++
		}
	}
	return rare <= 1 || protocol == "none" && (auth == "none" || auth == "good") || cert == "none" && header == "none"
}

func request(peer []*x509.Certificate, h, up http.Header, auth, proto []string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/apis/wardle.example.com/v1alpha1", nil)
	r.Header = h.Clone()
	maps.Copy(r.Header, up)
	if auth != nil {
		r.Header["Authorization"] = auth
	}
	if proto != nil {
		r.Header["Sec-Websocket-Protocol"] = proto
	}
	r.TLS = &tls.ConnectionState{PeerCertificates: peer}
	return r
}

func compare(t *testing.T, a *Authenticator, upstream authenticator.Request, conn *Conn, r *http.Request, name string) {
	t.Helper()
	c := read(a, conn, headOf(r.Header), r.Header.Get("Upgrade"))
	u, known := a.Cached(&c, r.URL.Path)
	var err error
	if !known {
		u, err = a.Review(t.Context(), &c, bound.Source{})
	} else if u == nil {
		err = ErrUnauthenticated
	}
	if cached, known := a.Cached(&c, r.URL.Path); known {
		check.Same(t, describe(u), describe(cached), "%s: what Cached says, unlike Review", name)
	}
	want := "nobody"
	resp, ok, wantErr := upstream.AuthenticateRequest(r)
	if ok && wantErr == nil {
		want = describe(resp.User)
	}
	check.Same(t, want, describe(u), "%s: the user (%v), unlike upstream's (%v)", name, err, wantErr)
	check.Same(t, u == nil, err != nil, "%s: user %v and error %v", name, u, err)
	// Requests to the local apiserver must not become anonymous after a failure: upstream, too,
	// must have refused those without a token and a user.
	check.Same(t, false, c.Kind == KindInvalid && wantErr == nil, "%s: refused, upstream sees %s", name, want)
	check.Same(t, false, c.Kind == KindNone && wantErr != nil, "%s: forwarded as anonymous, upstream refuses: %v", name, wantErr)
	check.Same(t, false, c.Kind == KindNone && errors.Is(err, errBadToken), "%s: no credential, and yet an invalid token", name)
}
