package authn

import (
	"crypto/x509"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
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
		u := must.Get(a.Review(t.Context(), c, "/apis"))(t)
		out = must.Get(a.Headers(out, u))(t)
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
	x := must.Get(certificateUser(client))(t)
	alice := []string{
		"x-remote-user: alice", "x-remote-uid: u-1", "x-remote-group: dev", "x-remote-group: system:authenticated",
		credential + x.Extra["authentication.kubernetes.io/credential-id"][0],
	}
	owner := func(token string) []string {
		return []string{"x-remote-user: owner of " + token, "x-remote-uid: uid", "x-remote-group: tokens", "x-remote-group: system:authenticated", credential + "JTI=1"}
	}
	spoken := func(token string) []string {
		return []string{"sec-websocket-protocol: a, " + protocolOf(token) + ", b"}
	}
	// Impersonation fields are forwarded to the local apiserver, and never to a remote, which gets
	// the impersonated user.
	as := "impersonate-user: carol"
	tests := []struct {
		name    string
		peer    []*x509.Certificate
		head    Head
		upgrade string
		kind    Kind
		pool    Pool
		local   []string // nil: 401
		remote  []string // nil: 401
	}{
		{name: "nothing", kind: KindNone, pool: PoolUnproven, local: []string{}},
		{name: "basic", head: head("authorization", "Basic eDp5"), kind: KindNone, pool: PoolUnproven, local: []string{"authorization: Basic eDp5"}},
		{name: "certificate", peer: client, kind: KindCertificate, pool: PoolCertificate, local: alice, remote: alice},
		{name: "certificate and token", peer: client, head: bearer("bad"), kind: KindCertificate, pool: PoolCertificate, local: alice, remote: alice},
		{
			name: "certificate and socket token", peer: client, upgrade: "websocket", head: head("sec-websocket-protocol", "a, "+protocolOf("good")+", b"),
			kind: KindCertificate, pool: PoolCertificate,
			local: slices.Concat([]string{"sec-websocket-protocol: a,b"}, alice), remote: slices.Concat([]string{"sec-websocket-protocol: a,b"}, alice),
		},
		{name: "token", head: bearer("good"), kind: KindToken, pool: PoolUnproven, local: []string{"authorization: Bearer good"}, remote: owner("good")},
		{name: "bad token", head: bearer("bad"), kind: KindToken, pool: PoolUnproven, local: []string{"authorization: Bearer bad"}},
		{
			name: "two tokens", head: slices.Concat(bearer("good"), bearer("other")), kind: KindToken, pool: PoolUnproven,
			local: []string{"authorization: Bearer good", "authorization: Bearer other"}, remote: owner("good"),
		},
		{name: "foreign certificate", peer: foreign, kind: KindInvalid},
		{name: "foreign certificate and token", peer: foreign, head: bearer("good"), kind: KindToken, pool: PoolUnproven, local: []string{"authorization: Bearer good"}, remote: owner("good")},
		{name: "foreign certificate and bad token", peer: foreign, head: bearer("bad"), kind: KindToken, pool: PoolUnproven, local: []string{"authorization: Bearer bad"}},
		{name: "front proxy without user", peer: front, kind: KindInvalid},
		{name: "front proxy without user, with token", peer: front, head: bearer("good"), kind: KindToken, pool: PoolUnproven, local: []string{"authorization: Bearer good"}, remote: owner("good")},
		{
			name: "socket token", upgrade: "websocket", head: head("sec-websocket-protocol", "a, "+protocolOf("good")+", b"), kind: KindToken, pool: PoolUnproven,
			local: spoken("good"), remote: slices.Concat([]string{"sec-websocket-protocol: a,b"}, owner("good")),
		},
		{
			name: "socket token on a line of its own", upgrade: "websocket", head: head("sec-websocket-protocol", protocolOf("good"), "sec-websocket-protocol", "b"),
			kind: KindToken, pool: PoolUnproven, local: []string{"sec-websocket-protocol: " + protocolOf("good"), "sec-websocket-protocol: b"},
			remote: slices.Concat([]string{"sec-websocket-protocol: b"}, owner("good")),
		},
		{name: "malformed socket token", upgrade: "websocket", head: head("sec-websocket-protocol", "a, "+bearerProtocol+"=, b"), kind: KindInvalid},
		{
			name: "a socket token without a socket", head: slices.Concat(bearer("good"), head("sec-websocket-protocol", "a,"+protocolOf("good-2"))), kind: KindToken, pool: PoolUnproven,
			local:  []string{"authorization: Bearer good", "sec-websocket-protocol: a," + protocolOf("good-2")},
			remote: slices.Concat([]string{"sec-websocket-protocol: a"}, owner("good")),
		},
		{
			name: "impersonation", peer: client, head: head("impersonate-user", "carol"), kind: KindCertificate, pool: PoolCertificate,
			local: slices.Concat([]string{as}, alice), remote: alice,
		},
		{
			name: "token and impersonation", head: slices.Concat(bearer("good"), head("impersonate-user", "carol")), kind: KindToken, pool: PoolUnproven,
			local: []string{"authorization: Bearer good", as}, remote: owner("good"),
		},
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
					t.Fatalf("kind %d, want %d (%v)", c.Kind, tt.kind, c.Err)
				}
				check.Same(t, strings.HasSuffix(tt.name, "impersonation"), c.Impersonates, "it impersonates")
				local := tt.local
				if forged && local != nil && tt.kind != KindInvalid && (tt.pool == PoolUnproven || tt.pool == PoolCertificate) {
					// Only remotes must not receive this field.
					local = slices.Concat([]string{"impersonate_user: root"}, tt.local)
				}
				if c.Kind == KindInvalid {
					if c.Err == nil {
						t.Error("refused without a reason")
					}
				} else {
					check.Same(t, tt.pool, a.Pool(&c), "pool")
					got := forward(t, a, h, &c, a.Pool(&c))
					slices.Sort(got)
					local = slices.Compact(slices.Sorted(slices.Values(local)))
					got = slices.Compact(got)
					if diff := cmp.Diff(local, got, cmpEmpty()); diff != "" {
						t.Errorf("local: %s", diff)
					}
				}
				u, err := a.Review(t.Context(), &c, "/apis")
				if tt.remote == nil {
					if u != nil || err == nil {
						t.Errorf("a remote would get %v (%v)", u, err)
					}
					return
				}
				if diff := cmp.Diff(tt.remote, forward(t, a, h, &c, PoolRemote), cmpEmpty()); diff != "" {
					t.Errorf("remote: %s", diff)
				}
			})
		}
	}
}

func cmpEmpty() cmp.Option {
	return cmp.Transformer("nil", func(s []string) []string { return append([]string{}, s...) })
}

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

func TestStrip(t *testing.T) {
	a := newAuthenticator(t, Config{RequestHeaders: HeaderNames{Username: []string{"My_User"}, ExtraPrefix: []string{"Zz-"}}})
	always := []string{"x-remote-user", "X-REMOTE-USER", "x_remote_user", "X-Remote_Group", "x-remote-", "x-remote-extra-", "x_remote_extra_a", "my-user", "MY_USER", "zz-", "zz_key", "Zz-Key", "proxy-authorization", "proxy_authorization"}
	secret := []string{"authorization", "Authorization", "AUTHORIZATION"}
	remote := []string{"impersonate-user", "Impersonate-Extra-A", "impersonate_group", "impersonate-", "sec_websocket_protocol", "sec-websocket_protocol"}
	never := []string{"", "x", "x-remote", "xx-remote-user", "x-remoteuser", "my-users", "my", "z", "zz", "accept", "sec-websocket-protocol", "some_header_of_22_byte", "if-none-match", "authorization-x", "impersonate", "cookie", "x-forwarded-for", ":path", "\xff"}
	for p := PoolRemote; p <= PoolImpersonate; p++ {
		asserted := p == PoolRemote || p == PoolImpersonate
		check := func(names []string, want bool) {
			for _, n := range names {
				check.Same(t, want, a.Strip(n, p), "pool %d: Strip(%q)", p, n)
			}
		}
		check(always, true)
		check(secret, asserted || p == PoolCertificate)
		check(remote, asserted)
		check(never, false)
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
