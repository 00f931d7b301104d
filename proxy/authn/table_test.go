package authn

import (
	"crypto/x509"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// forward applies what this package returns as a proxy must: it drops hop-by-hop and stripped
// fields, cuts tokens out of subprotocols, and then sets fields.
func forward(t *testing.T, a *Authenticator, h Head, c *Credentials, p Pool) []string {
	t.Helper()
	var listed []string
	for _, f := range h {
		if f.Name == "connection" {
			for name := range strings.SplitSeq(f.Value, ",") {
				listed = append(listed, strings.ToLower(strings.TrimSpace(name)))
			}
		}
	}
	var out []hpack.HeaderField
	for _, f := range h {
		if f.Name == "connection" || f.Name == "upgrade" || slices.Contains(listed, f.Name) || a.Strip(f.Name, p) {
			continue
		}
		if f.Name == fieldProtocol && p != PoolProven && p != PoolUnproven {
			if f.Value = CutProtocol(f.Value); f.Value == "" {
				continue
			}
		}
		out = append(out, f)
	}
	if p == PoolRemote || p == PoolCertificate {
		u := must.Get(identify(t, a, c, "/apis"))(t)
		out = must.Get(a.Assert(out, u, PoolRemote))(t)
	}
	var text []string
	for _, f := range out {
		text = append(text, f.Name+": "+f.Value)
		if strings.HasPrefix(f.Name, "x-remote-") && !f.Sensitive {
			t.Errorf("%s may be indexed", f.Name)
		}
	}
	return text
}

// forgeries are all known ways to claim another identity; no backend may receive any of them.
func forgeries() Head {
	return head(
		"x-remote-user", "root", "x-remote-uid", "0", "x-remote-group", "system:masters", "x-remote-extra-scopes", "all", "x-remote-anything", "x",
		"X-Remote-User", "root", "x_remote_user", "root", "X_Remote-Group", "system:masters", "x-remote_extra-a", "b", "x-remote-user", "root2",
		"x-flag-user", "root", "x_flag_user", "root", "x-flag-more-k", "v", "x-cluster-user", "root", "x-cluster_extra-k", "v",
		"impersonate_user", "root", "proxy-authorization", "Basic x", "connection", "x-remote-user, x-remote-group, X-Remote-Extra-Authentication.kubernetes.io%2Fcredential-Id",
	)
}

// TestDesignTable is the table of design section 3: for each way to authenticate, exactly the
// fields that each backend receives.
func TestDesignTable(t *testing.T) {
	clientCA, frontCA, foreignCA := newAuthority("client-ca"), newAuthority("front-ca"), newAuthority("foreign-ca")
	client := clientCA.issue(pki.Leaf{CommonName: "alice", Organizations: []string{"dev"}, UIDs: []string{"u-1"}}, time.Hour)
	front := frontCA.issue(pki.Leaf{CommonName: "front-proxy-client"}, time.Hour)
	foreign := foreignCA.issue(pki.Leaf{CommonName: "root", Organizations: []string{"system:masters"}}, time.Hour)
	credential := "x-remote-extra-authentication.kubernetes.io%2fcredential-id: "
	x, _, err := x509request.CommonNameUserConversion(client)
	must.Do(t, err)
	alice := []string{
		"x-remote-user: alice", "x-remote-uid: u-1", "x-remote-group: dev", "x-remote-group: system:authenticated",
		credential + x.User.GetExtra()["authentication.kubernetes.io/credential-id"][0],
	}
	owner := func(token string) []string {
		return []string{"x-remote-user: owner of " + token, "x-remote-uid: uid", "x-remote-group: tokens", "x-remote-group: system:authenticated", credential + "JTI=1"}
	}
	// Impersonation fields are forwarded to the local apiserver, and never to a remote, which gets
	// the impersonated user.
	as, carol := "impersonate-user: carol", head("impersonate-user", "carol")
	good, goodField, badField := bearer("good"), "authorization: Bearer good", "authorization: Bearer bad"
	spoken := head("sec-websocket-protocol", "a, "+protocolOf("good")+", b")
	spokenField, cut := "sec-websocket-protocol: a, "+protocolOf("good")+", b", "sec-websocket-protocol: a,b"
	const socket = "websocket"
	with := func(first string, others []string) []string { return slices.Concat([]string{first}, others) }
	tests := []struct {
		name    string
		peer    []*x509.Certificate
		head    Head
		upgrade string
		kind    Kind
		local   []string // nil: 401
		remote  []string // nil: 401
	}{
		{"nothing", nil, nil, "", KindNone, []string{}, nil},
		{"basic", nil, head("authorization", "Basic eDp5"), "", KindNone, []string{"authorization: Basic eDp5"}, nil},
		{"certificate", client, nil, "", KindCertificate, alice, alice},
		{"certificate and token", client, bearer("bad"), "", KindCertificate, alice, alice},
		{"certificate and socket token", client, spoken, socket, KindCertificate, with(cut, alice), with(cut, alice)},
		{"token", nil, good, "", KindToken, []string{goodField}, owner("good")},
		{"bad token", nil, bearer("bad"), "", KindToken, []string{badField}, nil},
		{
			"two tokens", nil, slices.Concat(good, bearer("other")), "", KindToken,
			[]string{goodField, "authorization: Bearer other"}, owner("good"),
		},
		{"foreign certificate", foreign, nil, "", KindInvalid, nil, nil},
		{"foreign certificate and token", foreign, good, "", KindToken, []string{goodField}, owner("good")},
		{"foreign certificate and bad token", foreign, bearer("bad"), "", KindToken, []string{badField}, nil},
		{"front proxy without user", front, nil, "", KindInvalid, nil, nil},
		{"front proxy without user, with token", front, good, "", KindToken, []string{goodField}, owner("good")},
		{"socket token", nil, spoken, socket, KindToken, []string{spokenField}, with(cut, owner("good"))},
		{
			"socket token on a line of its own", nil,
			head("sec-websocket-protocol", protocolOf("good"), "sec-websocket-protocol", "b"), socket, KindToken,
			[]string{"sec-websocket-protocol: " + protocolOf("good"), "sec-websocket-protocol: b"}, with("sec-websocket-protocol: b", owner("good")),
		},
		{"malformed socket token", nil, head("sec-websocket-protocol", "a, "+bearerProtocol+"=, b"), socket, KindInvalid, nil, nil},
		{
			"a socket token without a socket", nil, slices.Concat(good, head("sec-websocket-protocol", "a,"+protocolOf("good-2"))), "", KindToken,
			[]string{goodField, "sec-websocket-protocol: a," + protocolOf("good-2")}, with("sec-websocket-protocol: a", owner("good")),
		},
		{"impersonation", client, carol, "", KindCertificate, with(as, alice), alice},
		{"token and impersonation", nil, slices.Concat(good, carol), "", KindToken, []string{goodField, as}, owner("good")},
	}
	target := &HeaderNames{
		Username: []string{"X-Cluster-User", "X-Remote-User"}, UID: []string{"X-Remote-Uid"}, Group: []string{"X-Remote-Group"},
		ExtraPrefix: []string{"X-Remote-Extra-", "X-Cluster-Extra-"},
	}
	for _, tt := range tests {
		for _, forged := range []bool{false, true} {
			name := tt.name
			if forged {
				name += ", forged headers"
			}
			if forged && tt.peer != nil && &tt.peer[0] == &front[0] {
				continue // a front proxy may set these: TestFrontProxy
			}
			t.Run(name, func(t *testing.T) {
				a := newAuthenticator(t, Config{
					VerifyClient: clientCA.verify(), VerifyFrontProxy: frontCA.verify("front-proxy-client"), Review: newTokens().review,
					RequestHeaders: HeaderNames{Username: []string{"X-Flag-User", "X-Remote-User"}, ExtraPrefix: []string{"X-Flag-More-"}},
					Target:         func() (*HeaderNames, bool) { return target, true },
				})
				h := tt.head
				if forged {
					h = slices.Concat(forgeries(), h, forgeries())
				}
				c := read(a, &Conn{Peer: tt.peer}, h, tt.upgrade)
				if c.Kind != tt.kind {
					t.Fatalf("kind %d, want %d", c.Kind, tt.kind)
				}
				check.Same(t, strings.HasSuffix(tt.name, "impersonation"), c.Impersonates, "it impersonates")
				if c.Kind != KindInvalid {
					pool, local := PoolUnproven, tt.local
					if tt.kind == KindCertificate {
						pool = PoolCertificate
					}
					if forged { // only remotes must not receive this field
						local = with("impersonate_user: root", local)
					}
					check.Same(t, pool, a.Pool(&c), "pool")
					check.Same(t, sorted(local), sorted(forward(t, a, h, &c, pool)), "local")
				}
				u, err := identify(t, a, &c, "/apis")
				if tt.remote != nil {
					check.Same(t, tt.remote, forward(t, a, h, &c, PoolRemote), "remote")
				} else if u != nil || err == nil {
					t.Errorf("a remote would get %v (%v)", u, err)
				}
			})
		}
	}
}

func sorted(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// The user that a verified front proxy sends is read, stripped and sent anew.
func TestFrontProxy(t *testing.T) {
	frontCA := newAuthority("front-ca")
	front := frontCA.issue(pki.Leaf{CommonName: "front-proxy-client"}, time.Hour)
	a := newAuthenticator(t, Config{VerifyFrontProxy: frontCA.verify("front-proxy-client"), RequestHeaders: HeaderNames{
		Username: []string{"X-Flag-User", "X-Remote-User"}, UID: []string{"X-Remote-Uid"}, Group: []string{"X-Remote-Group"}, ExtraPrefix: []string{"X-Remote-Extra-", "X-Flag-More-"},
	}})
	h := slices.Concat(forgeries(), bearer("bad"), head("accept", "*/*"))
	c := read(a, &Conn{Peer: front}, h, "")
	if c.Kind != KindFrontProxy || a.Pool(&c) != PoolCertificate {
		t.Fatalf("kind %d, pool %d", c.Kind, a.Pool(&c))
	}
	want := []string{
		"accept: */*", "x-remote-user: root", "x-remote-uid: 0", "x-remote-group: system:masters", "x-remote-group: system:authenticated",
		"x-remote-extra-k: v", "x-remote-extra-scopes: all",
	}
	check.Same(t, want, slices.DeleteFunc(forward(t, a, h, &c, PoolRemote), func(s string) bool { return strings.HasPrefix(s, "x-cluster") }),
		"fields")
}

// With the cluster's CA of front proxies go its fields: a proxy that follows the ConfigMap strips no others.
func TestReadTarget(t *testing.T) {
	frontCA := newAuthority("front-ca")
	names := HeaderNames{Username: []string{"X-Remote-User"}, UID: []string{"X-Id"}, Group: []string{"X-Remote-Group"}, ExtraPrefix: []string{"X-More-"}}
	a := newAuthenticator(t, Config{VerifyFrontProxy: frontCA.verify(), ReadTarget: true, Target: func() (*HeaderNames, bool) { return &names, true }})
	h := head("x-remote-user", "jane", "x-id", "1", "x-remote-group", "g", "x-more-scopes", "few", "x-remote-extra-scopes", "all")
	c := read(a, &Conn{Peer: frontCA.issue(pki.Leaf{CommonName: "front-proxy-client"}, time.Hour)}, h, "")
	check.Same(t, `jane/1["g" "system:authenticated"]map[scopes:[few]]`, describe(c.User), "user")
}

// A configured name is stripped in every spelling, including that of its first byte.
func TestStrip(t *testing.T) {
	a := newAuthenticator(t, Config{RequestHeaders: HeaderNames{
		Username: []string{"My_User", "-user"}, UID: []string{"8id"}, Group: []string{"7group"}, ExtraPrefix: []string{"Zz-", "zone-"},
	}})
	always := "x-remote-user X-REMOTE-USER x_remote_user X-Remote_Group x-remote- x-remote-extra- x_remote_extra_a my-user MY_USER zz- zz_key Zz-Key " +
		"proxy-authorization proxy_authorization -user _user 7group 7Group 8ID Zone_x zone-"
	secret := "authorization Authorization AUTHORIZATION"
	remote := "impersonate-user Impersonate-Extra-A impersonate_group impersonate- sec_websocket_protocol sec-websocket_protocol"
	never := "x x-remote xx-remote-user x-remoteuser my-users my z zz accept sec-websocket-protocol some_header_of_22_byte if-none-match authorization-x " +
		"impersonate cookie x-forwarded-for :path \xff user - -users 7grou 7groups 8ids zone"
	for p := PoolRemote; p <= PoolImpersonate; p++ {
		asserted := p == PoolRemote || p == PoolImpersonate
		for names, want := range map[string]bool{always: true, secret: asserted || p == PoolCertificate, remote: asserted, never: false, "": false} {
			for n := range strings.SplitSeq(names, " ") {
				check.Same(t, want, a.Strip(n, p), "pool %d: Strip(%q)", p, n)
			}
		}
	}
}

// headOf converts a net/http header.
func headOf(from http.Header) (h Head) {
	for name, values := range from {
		for _, v := range values {
			h = append(h, hpack.HeaderField{Name: strings.ToLower(name), Value: v})
		}
	}
	return h
}
