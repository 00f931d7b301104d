package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// thinker is a Proxy that decides requests and forwards none.
func thinker(f testing.TB, c worldConfig) (*world, *Proxy) {
	w := &world{authorities: authorities{pki.NewCA("clients"), pki.NewCA("front"), pki.NewCA("serving")}}
	w.remote = &far{Server: httptest.NewUnstartedServer(http.NotFoundHandler())} // for its address
	f.Cleanup(func() { _ = w.remote.Listener.Close() })
	table := buildTable(f, w, c)
	now, none := func() *registry.Table { return table }, &tls.Config{MinVersion: tls.VersionTLS12}
	pools := newPools(f, backend.Config{}, now, func(string, *registry.Backend) (*tls.Config, error) { return none, nil })
	local := newLocal(f, "127.0.0.1:1", new(net.Dialer).DialContext, func(bool) (*tls.Config, error) { return none, nil })
	p := must.Get(New(Config{Tables: scene.TableFunc(now), Authn: w.authenticator(f, c), Authz: newTestAuthorizer(f, c), Backends: pools, Local: local}))(f)
	return w, p
}

func fuzzFields(text string) []hpack.HeaderField {
	var fields []hpack.HeaderField
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && name != "" {
			fields = append(fields, hpack.HeaderField{Name: strings.ToLower(name), Value: strings.TrimSpace(value)})
		}
	}
	return fields
}

// FuzzDecide checks that no decision leads a path to a backend that it does not name, serves a
// request as another user, or forwards an identity field of the client.
func FuzzDecide(f *testing.F) {
	_, p := thinker(f, worldConfig{})
	const forged = "x-remote-user: system:admin\nX_Remote-Group: system:masters\nauthorization: Bearer token-of-bob\nconnection: authorization, x-remote-user\nimpersonate-user: boss"
	for _, path := range []string{
		remoteGV, remoteGV + "/", remoteGV + "/widgets", remoteGV + "/widgets/a%2Fb", "/apis/remote.example.com%2Fv1/widgets", "/apis//remote.example.com/v1", "/api/v1/../../apis/remote.example.com/v1",
		"/apis/remote.example.com/v1/../../../api/v1/secrets", "/apis/remote.example.com/v1beta1", "/apis/Remote.example.com/v1", "/", "/api", "/apis", "/openapi/v2", "/fairlead/status", "/readyz", "*", "", "x",
	} {
		f.Add("GET", path, "watch=true", forged, true)
		f.Add("POST", path, "timeout=1s&x=%zz", "upgrade: websocket\nsec-websocket-protocol: base64url.bearer.authorization.k8s.io.dG9rZW4tb2YtYm9i", false)
	}
	f.Fuzz(func(t *testing.T, method, path, query, text string, token bool) {
		h := &Head{Head: wire.Head{Method: method, Path: path, RawQuery: query, Fields: fuzzFields(text)}, RemoteIP: "192.0.2.1"}
		if token {
			h.Fields = append([]hpack.HeaderField{{Name: "authorization", Value: "Bearer token-of-carol"}}, h.Fields...)
		}
		d, known := p.decision(t.Context(), h, &authn.Conn{}, true)
		check.Same(t, true, known, "decided")
		checkRoute(t, path, &d)
		if d.Action == ToRemote {
			checkRemote(t, &exchange{p: p, head: h, decision: d}, token)
		}
	})
}

func checkRoute(t *testing.T, path string, d *Decision) {
	t.Helper()
	spelled := path == remoteGV || strings.HasPrefix(path, remoteGV+"/")
	check.Same(t, false, d.Action == ToRemote && !spelled || d.Action == ToLocal && spelled, "%q leads to %v", path, d.Action)
	check.Same(t, false, d.Action == Refuse && d.Err == nil, "%q is refused without an error", path)
	for part := range strings.SplitSeq(path, "/") {
		// A path that leads to none of Fairlead's, as sent and resolved, is the local apiserver's
		// to judge, byte for byte.
		check.Same(t, false, (part == ".." || part == ".") && d.Action != Refuse && d.Action != ToLocal, "%q is allowed: %v", path, d.Action)
	}
}

func checkRemote(t *testing.T, x *exchange, token bool) {
	t.Helper()
	h, d := x.head, &x.decision
	must.Be(t, d.User != nil && (!token || d.User.GetName() == "carol"), "served as %v", d.User)
	for _, f := range d.Set {
		check.Same(t, true, x.removes(f.Name), "%q replaces the client's", f.Name)
		check.Same(t, false, f.Name == "x-remote-user" && f.Value != d.User.GetName(), "the backend gets the user %q, want %q", f.Value, d.User.GetName())
	}
	check.Same(t, true, slices.ContainsFunc(d.Set, func(f hpack.HeaderField) bool { return f.Name == "x-remote-user" }), "the backend gets a user")
	for _, f := range h.Fields {
		name := strings.ReplaceAll(f.Name, "_", "-")
		personal := strings.HasPrefix(name, "x-remote-") || strings.HasPrefix(name, "impersonate-") || name == "authorization" || name == "proxy-authorization"
		check.Same(t, false, personal && !x.removes(f.Name), "%q is forwarded", f.Name)
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
		h := &Head{Head: wire.Head{Method: "GET", Path: path, Fields: fuzzFields(text)}, RemoteIP: "192.0.2.1"}
		d, known := p.decision(t.Context(), h, conns[from], true)
		check.Same(t, true, known, "decided")
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
				own++
				check.Same(t, ownCredential, field.Value, "Authorization")
			case "impersonate-user":
				users = append(users, field.Value)
			}
		}
		must.Be(t, own == len(users) && own <= 1 && (own == 1) == (d.Pool == authn.PoolImpersonate) && (own == 1) == (d.User != nil), "our own credential is sent %d times, for %q, over pool %d", own, users, d.Pool)
		removes := (&exchange{p: p, head: h, decision: d}).removes
		for _, field := range h.Fields {
			name := strings.ReplaceAll(field.Name, "_", "-")
			check.Same(t, false, strings.HasPrefix(name, "x-remote-") && !removes(field.Name) || removes(field.Name) && own == 0 && (field.Name == "authorization" || field.Name == "impersonate-user"), "%s: removed %v", field.Name, removes(field.Name))
			check.Same(t, false, own == 1 && (name == "authorization" || strings.HasPrefix(name, "impersonate-")) && !removes(field.Name), "%q is forwarded along with our own credential", field.Name)
		}
		check.Same(t, false, own == 1 && (users[0] == "" || users[0] != d.User.GetName() || names[from] != "" && users[0] != names[from] || d.Credentials.Impersonates), "sent as %q, decided for %v", users, d.User)
	})
}

// The issuer of a long token is determined at the desk. Otherwise strangers with many of them would use all processors.
func TestLongTokenWaitsItsTurn(t *testing.T) {
	w := newWorld(t, worldConfig{impersonate: true})
	w.proxy.desk.heads = bound.NewQueue(1, 1)
	leave := must.Get(w.proxy.desk.heads.Enter(t.Context(), bound.Stranger("192.0.2.2:1"), 1))(t)
	short, long := "jwt.of.dave", "jwt.of."+strings.Repeat("x", 3000)
	ask := func(token string) (Action, authn.Kind) {
		h := &Head{Head: wire.Head{Method: "GET", Path: "/api/v1/pods", Fields: []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + token}}}, Remote: "192.0.2.1:1"}
		d, known := w.proxy.decision(t.Context(), h, nil, false)
		check.Same(t, false, known && token == long, "a long token: decided without a turn: %v", d.Action)
		d, _ = w.proxy.decision(t.Context(), h, nil, true)
		return d.Action, d.Credentials.Kind
	}
	want := func(name, token string, action Action, kind authn.Kind) {
		t.Helper()
		a, k := ask(token)
		check.Same(t, true, a == action && k == kind, "%s: %v, %v", name, a, k)
	}
	want("a short token", short, ToLocal, authn.KindIssued)
	want("a long token while the desk is full", long, Refuse, authn.KindToken)
	leave()
	want("a long token afterwards", long, ToLocal, authn.KindIssued)
	want("a long token again, with the first one's turn", long, ToLocal, authn.KindIssued)
}
