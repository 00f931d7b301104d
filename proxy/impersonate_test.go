package proxy

import (
	"cmp"
	"crypto/x509"
	"encoding/base64"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// passport is one way to authenticate to a front door that impersonates.
type passport struct {
	name   string
	pair   *pki.Pair
	header http.Header
	// as is the user that the local apiserver gets, with our own credential. If it is empty, the
	// caller's credential is forwarded, or refused with status.
	as     string
	groups []string
	status int
}

func passports(w *world) []passport {
	client := func(name string, groups ...string) *pki.Pair {
		return w.client.Issue(pki.Leaf{CommonName: name, Organizations: groups})
	}
	token := func(v string) http.Header { return http.Header{"Authorization": {"Bearer " + v}} }
	socket := func(v string) http.Header {
		return http.Header{"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(v)) + ", v5.channel.k8s.io"}}
	}
	proxied := func(name string, groups ...string) http.Header {
		return http.Header{"X-Remote-User": {name}, "X-Remote-Group": groups}
	}
	both := func(a, b http.Header) http.Header { a = a.Clone(); maps.Copy(a, b); return a }
	front := w.authorities.front.Issue(pki.Leaf{CommonName: "outer"})
	foreign := pki.NewCA("elsewhere").Issue(pki.Leaf{CommonName: "mallory"})
	jane := http.Header{"Impersonate-User": {"jane"}, "Impersonate-Group": {"dev"}}
	return []passport{
		{name: "certificate", pair: client("alice", "dev"), as: "alice", groups: []string{"dev"}},
		{name: "certificate and a token", pair: client("alice"), header: token("token-of-bob"), as: "alice"},
		{name: "front proxy", pair: front, header: proxied("carol", "ops"), as: "carol", groups: []string{"ops"}},
		{name: "JWT", header: token("jwt.of.dave"), as: "dave", groups: []string{"people"}},
		{name: "foreign certificate and a JWT", pair: foreign, header: token("jwt.of.dave"), as: "dave", groups: []string{"people"}},
		{name: "impersonation", pair: client("boss"), header: jane, as: "jane", groups: []string{"dev"}},
		{name: "impersonation by JWT", header: both(token("jwt.of.boss"), jane), as: "jane", groups: []string{"dev"}},
		{name: "impersonation of a ServiceAccount", pair: client("boss"), header: http.Header{"Impersonate-User": {"system:serviceaccount:a:b"}}, as: "system:serviceaccount:a:b", groups: []string{"system:serviceaccounts", "system:serviceaccounts:a"}},
		{name: "nothing", status: 200},
		{name: "token", header: token("token-of-bob"), status: 200},
		{name: "token that impersonates", header: both(token("token-of-bob"), jane), status: 200},
		{name: "nobody who impersonates", header: jane, status: 200},
		{name: "basic", header: http.Header{"Authorization": {"Basic Zm9vOmJhcg=="}}, status: 200},
		{name: "token in a WebSocket's protocol", header: socket("token-of-bob"), status: 200},
		{name: "bad JWT", header: token("jwt.of"), status: 401},
		{name: "bad JWT and a good token for a WebSocket", header: both(token("jwt.of"), socket("token-of-bob")), status: 401},
		{name: "foreign certificate", pair: foreign, status: 401},
		{name: "front proxy without a user", pair: front, status: 401},
		{name: "master", pair: client("root", "system:masters"), status: 403},
		{name: "front proxy's master", pair: front, header: proxied("carol", "ops", "system:masters"), status: 403},
		{name: "front proxy's ServiceAccount", pair: front, header: proxied("system:serviceaccount:fairlead:fairlead"), status: 403},
		{name: "impersonation by who may not", pair: client("alice"), header: jane, status: 403},
		{name: "impersonation by who may not, by JWT", header: both(token("jwt.of.dave"), jane), status: 403},
		{name: "impersonated master", pair: client("boss"), header: http.Header{"Impersonate-User": {"jane"}, "Impersonate-Group": {"system:masters"}}, status: 403},
		{name: "impersonated group", pair: client("boss"), header: http.Header{"Impersonate-Group": {"dev"}}, status: 400},
		{name: "impersonated nobody", pair: client("boss"), header: http.Header{"Impersonate-User": {""}}, status: 400},
		{name: "impersonation that nobody knows", pair: client("boss"), header: both(jane, http.Header{"Impersonate-As": {"root"}}), status: 400},
	}
}

// impersonationForgeries are fields that a client might add.
func impersonationForgeries() map[string]http.Header {
	return map[string]http.Header{
		"none":        nil,
		"family":      {"x-remote-uid": {"0"}, "X-Remote-Anything": {"x"}, "X_Remote_User": {"root"}, "X-REMOTE_Group": {"system:masters"}},
		"underscores": {"Impersonate_User": {"root"}, "impersonate_Group": {"system:masters"}, "Impersonate_extra-Scope": {"all"}},
		"connection":  {"Connection": {"Authorization, Impersonate-User, impersonate-group", "X-Remote-User"}},
		"other":       {"Proxy-Authorization": {"Bearer token-of-root"}, "Cookie": {"Authorization=Bearer token-of-root"}, "Forwarded": {"for=1.2.3.4"}},
	}
}

// asserted returns whether a request came with our own credential, and the user that it came as.
func asserted(t *testing.T, in received) (own bool, user string, groups []string) {
	t.Helper()
	h := in.header
	for name, values := range h {
		lower := strings.ReplaceAll(strings.ToLower(name), "_", "-")
		if strings.HasPrefix(lower, "x-remote") || lower == "proxy-authorization" || slices.Contains(values, "token-of-root") {
			t.Errorf("%s: %q has reached the local apiserver", name, values)
		}
		if slices.Contains(h["Authorization"], ownCredential) && strings.HasPrefix(lower, "impersonate-") {
			if name != "Impersonate-User" && name != "Impersonate-Group" && name != "Impersonate-Uid" && !strings.HasPrefix(name, "Impersonate-Extra-") || slices.Contains(values, "root") {
				t.Errorf("%s: %q came with our own credential", name, values)
			}
		}
	}
	check.Same(t, "", in.peer, "certificate")
	if !slices.Contains(h["Authorization"], ownCredential) {
		return false, "", nil
	}
	if len(h["Authorization"]) != 1 || len(h["Impersonate-User"]) != 1 {
		t.Errorf("our own credential came with %q as %q", h["Authorization"], h["Impersonate-User"])
	}
	return true, h.Get("Impersonate-User"), h["Impersonate-Group"]
}

// No credential, header or order of them makes a caller another user, and our own credential is
// never sent without a user.
func TestImpersonatedIdentity(t *testing.T) {
	w := newWorld(t, worldConfig{impersonate: true, local: switching})
	for _, p := range passports(w) {
		t.Run(p.name, func(t *testing.T) {
			for name, forged := range impersonationForgeries() {
				header := http.Header{}
				maps.Copy(header, p.header)
				maps.Copy(header, forged)
				for _, way := range []string{"http/1.1", "h2", "websocket", "SPDY/3.1"} {
					before, about := w.local.count(), name+", "+way
					want := cmp.Or(p.status, 200)
					if want == 200 && way != "http/1.1" && way != "h2" {
						want = 101
					}
					check.Same(t, want, w.visit(t, way, p.pair, header), "%s: status", about)
					if want >= 400 {
						check.Same(t, 0, w.local.count()-before, "%s: refused requests at the local apiserver", about)
						continue
					}
					in := w.local.last(t)
					own, user, groups := asserted(t, in)
					if own != (p.as != "") || user != p.as || !slices.Equal(groups, p.groups) {
						t.Errorf("%s: came with our credential %v as %q of %q, want %q of %q", about, own, user, groups, p.as, p.groups)
					}
					if !own {
						check.Same(t, p.header["Authorization"], in.header["Authorization"], "%s: Authorization", about)
						check.Same(t, p.header["Impersonate-User"], in.header["Impersonate-User"], "%s: Impersonate-User", about)
					}
				}
			}
		})
	}
}

// visit sends a request to the local apiserver over a protocol, or for an upgrade.
func (w *world) visit(t *testing.T, way string, pair *pki.Pair, header http.Header) int {
	t.Helper()
	if way == "http/1.1" || way == "h2" {
		r := w.request(t, "GET", "/api/v1/pods", nil)
		maps.Copy(r.Header, header)
		if way == "h2" {
			r.Header.Del("Connection")
		}
		return w.do(t, w.httpClient(t, way, pair), r).status
	}
	r := w.request(t, "GET", "/api/v1/namespaces/a/pods/b/exec", nil)
	r.Header = header.Clone()
	r.Header["Connection"] = append(r.Header["Connection"], "Upgrade")
	r.Header.Set("Upgrade", way)
	return w.write(t, pair, r).StatusCode
}

// A 401 of the local apiserver concerns our own credential if that was sent: the caller's is still
// valid.
func TestOwnCredentialIsRefused(t *testing.T) {
	w := newWorld(t, worldConfig{impersonate: true, local: func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusUnauthorized) }})
	alice := w.client.Issue(pki.Leaf{CommonName: "alice"})
	for i, way := range []string{"http/1.1", "h2", "websocket"} {
		check.Same(t, http.StatusServiceUnavailable, w.visit(t, way, alice, http.Header{}), "%s: status", way)
		check.Same(t, i+1, int(w.rejections.Load()), "%s: reports", way)
	}
	check.Same(t, http.StatusUnauthorized, w.visit(t, "h2", nil, http.Header{"Authorization": {"Bearer token-of-bob"}}), "a token: status")
	check.Same(t, 3, int(w.rejections.Load()), "reports")
}

// A caller with a certificate who wants to be somebody else is only asserted to the local
// apiserver, which decides about that. A front door that sends one identity decides itself, and
// refuses a user for whom it must not speak by name.
func TestImpersonationAtTheLocalAPIServer(t *testing.T) {
	for _, tc := range []struct {
		impersonate bool
		leaf        pki.Leaf
		want        Action
	}{
		{false, pki.Leaf{CommonName: "boss"}, ToLocal},
		{true, pki.Leaf{CommonName: "boss"}, Impersonate},
		{true, pki.Leaf{CommonName: "boss", Organizations: []string{"system:masters"}}, Refuse},
	} {
		w, p := thinker(t, worldConfig{impersonate: tc.impersonate})
		c := &authn.Conn{Peer: []*x509.Certificate{w.client.Issue(tc.leaf).Certificate}}
		h := &Head{Method: "GET", Path: "/api/v1/pods", Fields: []hpack.HeaderField{{Name: "impersonate-user", Value: "jane"}}}
		d, _ := p.decision(t.Context(), h, c, true)
		if d.Action != tc.want || d.User.GetName() != "boss" || d.Action == ToLocal && d.Strip.Removes("impersonate-user") {
			t.Errorf("%v: %v as %v (%v)", tc, d.Action, d.User, d.Err)
		}
	}
}

// Only a 401 of the local apiserver itself, to a request that carries it, rejects our credential.
func TestWhoseCredentialIsRefused(t *testing.T) {
	own := Decision{Action: ToLocal, Pool: authn.PoolImpersonate}
	remote, token, service, verb := own, own, own, own
	remote.Action, token.Pool, service.Request.Subresource, verb.Request.Verb = ToRemote, authn.PoolProven, "proxy", "proxy"
	for name, tc := range map[string]struct {
		of     Decision
		status int
		want   bool
	}{
		"ours": {own, 401, true}, "forbidden": {own, 403, false}, "a remote's": {remote, 401, false}, "a token": {token, 401, false},
		"a Service's": {service, 401, false}, "a Service's, by an old path": {verb, 401, false},
	} {
		check.Same(t, tc.want, tc.of.rejectsOwnCredential(tc.status), "%s", name)
	}
}

// The health paths and the admin port authenticate the same callers, and impersonate likewise.
func TestImpersonatedElsewhere(t *testing.T) {
	w := newWorld(t, worldConfig{impersonate: true})
	guarded := w.guard(t, w.proxy, func(rw http.ResponseWriter, r *http.Request) {
		u, _ := request.UserFrom(r.Context())
		_, _ = io.WriteString(rw, u.GetName())
	})
	boss := w.client.Issue(pki.Leaf{CommonName: "boss"})
	token := func(v string) http.Header { return http.Header{"Authorization": {"Bearer " + v}} }
	jane := func(group string) http.Header {
		return http.Header{"Impersonate-User": {"jane"}, "Impersonate-Group": {group}}
	}
	for _, tc := range []struct {
		name   string
		header http.Header
		pair   *pki.Pair
		status int
		user   string
	}{
		{"JWT of a ServiceAccount", token("jwt.of.system:serviceaccount:a:b"), nil, 403, ""},
		{"JWT", token("jwt.of.dave"), nil, 200, "dave"},
		{"bad JWT", token("jwt.of"), nil, 401, ""},
		{"token", token("token-of-bob"), nil, 200, "bob"},
		{"certificate", nil, w.client.Issue(pki.Leaf{CommonName: "alice"}), 200, "alice"},
		{"master", nil, w.client.Issue(pki.Leaf{CommonName: "root", Organizations: []string{"system:masters"}}), 403, ""},
		{"impersonation", jane("dev"), boss, 200, "jane"},
		{"impersonated master", jane("system:masters"), boss, 403, ""},
	} {
		ask := func(proto, method, path string) answer {
			r := w.request(t, method, path, nil)
			if path == "/page" {
				r.URL.Host, r.URL.Opaque = guarded.Listener.Addr().String(), ""
				r.URL.Path = path
			}
			maps.Copy(r.Header, tc.header)
			got := w.do(t, w.httpClient(t, proto, tc.pair), r)
			got.want(t, tc.status, tc.name, path)
			return got
		}
		if page := ask("http/1.1", "GET", "/page"); tc.status == 200 && page.body != tc.user {
			t.Errorf("%s: a page, served to %q", tc.name, page.body)
		}
		ask("h2", "GET", remoteGV+"/widgets")
		if tc.status == 200 {
			in := w.remote.last(t).header
			check.Same(t, tc.user, in.Get("X-Remote-User"), "%s: a remote's user", tc.name)
			check.Same(t, "", in.Get("Authorization")+in.Get("Impersonate-User"), "%s: credentials at a remote", tc.name)
		}
		if tc.user != "bob" { // the local apiserver knows other tokens itself
			ask("h2", "POST", "/readyz")
		}
	}
}

// FuzzDecideImpersonating checks that our own credential is never sent without a user, for another
// user than the caller, or along with an identity field of the caller's; and that the caller's
// credential is kept if ours is not sent.
func FuzzDecideImpersonating(f *testing.F) {
	w, p := thinker(f, worldConfig{impersonate: true})
	conns := []*authn.Conn{{}, {Peer: []*x509.Certificate{w.client.Issue(pki.Leaf{CommonName: "alice"}).Certificate}}, {Peer: []*x509.Certificate{w.authorities.front.Issue(pki.Leaf{CommonName: "outer"}).Certificate}}}
	names := []string{"", "alice", ""}
	for i := range conns {
		f.Add(i, "/api/v1/pods", "authorization: Bearer jwt.of.dave\nimpersonate-user: root")
		f.Add(i, "/api/v1/pods", "authorization: Bearer token-of-bob\nauthorization: Bearer jwt.of.dave\nx-remote-user: carol\nconnection: authorization, impersonate-user")
		f.Add(i, "/apis/apps/v1/deployments?watch=1", "x-remote-user: system:serviceaccount:a:b\nx-remote-group: system:masters\nx_remote_user: root")
		f.Add(i, "/readyz", "upgrade: websocket\nsec-websocket-protocol: base64url.bearer.authorization.k8s.io.and0Lm9mLmRhdmU\nauthorization: ")
	}
	f.Fuzz(func(t *testing.T, from int, path, text string) {
		from = ((from % len(conns)) + len(conns)) % len(conns)
		h := &Head{Method: "GET", Path: path, Fields: fuzzFields(text), RemoteIP: "192.0.2.1"}
		d, known := p.decision(t.Context(), h, conns[from], true)
		if !known {
			t.Fatal("undecided")
		}
		if d.Action == ToHealth {
			d.Action = ToLocal
			p.decideLocal(&d, h)
		}
		if d.Action != ToLocal {
			return
		}
		var users []string
		own := 0
		for _, field := range d.Set {
			switch field.Name {
			case "authorization":
				if own++; field.Value != ownCredential {
					t.Errorf("Authorization is set to %q", field.Value)
				}
			case "impersonate-user":
				users = append(users, field.Value)
			}
		}
		if own != len(users) || own > 1 || (own == 1) != (d.Pool == authn.PoolImpersonate) || (own == 1) != (d.User != nil) {
			t.Fatalf("our own credential is sent %d times, for %q, over pool %d", own, users, d.Pool)
		}
		for _, field := range h.Fields {
			name := strings.ReplaceAll(field.Name, "_", "-")
			if strings.HasPrefix(name, "x-remote-") && !d.Strip.Removes(field.Name) || d.Strip.Removes(field.Name) && own == 0 && (field.Name == "authorization" || field.Name == "impersonate-user") {
				t.Errorf("%s: removed %v", field.Name, d.Strip.Removes(field.Name))
			}
			if own == 1 && (name == "authorization" || strings.HasPrefix(name, "impersonate-")) && !d.Strip.Removes(field.Name) {
				t.Errorf("%q is forwarded along with our own credential", field.Name)
			}
		}
		if own == 1 && (users[0] == "" || users[0] != d.User.GetName() || names[from] != "" && users[0] != names[from] || d.Credentials.Impersonates) {
			t.Errorf("sent as %q, decided for %v", users, d.User)
		}
	})
}

// The issuer of a long token is determined at the desk. Otherwise strangers with many of them would
// use all processors.
func TestLongTokenWaitsItsTurn(t *testing.T) {
	w := newWorld(t, worldConfig{impersonate: true})
	w.proxy.desk.heads = bound.NewQueue(1, 1)
	leave := must.Get(w.proxy.desk.heads.Enter(t.Context(), bound.Stranger("192.0.2.2:1")))(t)
	short, long := "jwt.of.dave", "jwt.of."+strings.Repeat("x", 3000)
	ask := func(token string) (Action, authn.Kind) {
		h := &Head{Method: "GET", Path: "/api/v1/pods", Fields: []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + token}}, Remote: "192.0.2.1:1"}
		if d, known := w.proxy.decision(t.Context(), h, nil, false); known && token == long {
			t.Errorf("a long token: decided without a turn: %v", d.Action)
		}
		d, _ := w.proxy.decision(t.Context(), h, nil, true)
		return d.Action, d.Credentials.Kind
	}
	want := func(name, token string, action Action, kind authn.Kind) {
		t.Helper()
		if a, k := ask(token); a != action || k != kind {
			t.Errorf("%s: %v, %v", name, a, k)
		}
	}
	want("a short token", short, ToLocal, authn.KindIssued)
	want("a long token while the desk is full", long, Refuse, authn.KindToken)
	leave()
	want("a long token afterwards", long, ToLocal, authn.KindIssued)
	want("a long token again, with the first one's turn", long, ToLocal, authn.KindIssued)
}
