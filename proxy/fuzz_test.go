package proxy

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/registry"
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

// fuzzFields parses lines of name: value, with lower-case names as both protocols pass them.
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
		if !known {
			t.Fatal("undecided")
		}
		checkRoute(t, path, &d)
		if d.Action == ToRemote {
			checkRemote(t, &exchange{p: p, head: h, decision: d}, token)
		}
	})
}

func checkRoute(t *testing.T, path string, d *Decision) {
	t.Helper()
	spelled := path == remoteGV || strings.HasPrefix(path, remoteGV+"/")
	if d.Action == ToRemote && !spelled || d.Action == ToLocal && spelled {
		t.Errorf("%q leads to %v", path, d.Action)
	}
	if d.Action == Refuse && d.Err == nil {
		t.Errorf("%q is refused without an error", path)
	}
	for part := range strings.SplitSeq(path, "/") {
		// A path that leads to none of Fairlead's, as sent and resolved, is the local apiserver's
		// to judge, byte for byte.
		if (part == ".." || part == ".") && d.Action != Refuse && d.Action != ToLocal {
			t.Errorf("%q is allowed: %v", path, d.Action)
		}
	}
}

// checkRemote checks the fields that a backend would receive.
func checkRemote(t *testing.T, x *exchange, token bool) {
	t.Helper()
	h, d := x.head, &x.decision
	if d.User == nil || token && d.User.GetName() != "carol" {
		t.Fatalf("served as %v", d.User)
	}
	for _, f := range d.Set {
		if !x.removes(f.Name) {
			t.Errorf("%q is set beside the client's", f.Name)
		}
		if f.Name == "x-remote-user" && f.Value != d.User.GetName() {
			t.Errorf("the backend gets the user %q, want %q", f.Value, d.User.GetName())
		}
	}
	if !slices.ContainsFunc(d.Set, func(f hpack.HeaderField) bool { return f.Name == "x-remote-user" }) {
		t.Error("the backend gets no user")
	}
	for _, f := range h.Fields {
		name := strings.ReplaceAll(f.Name, "_", "-")
		personal := strings.HasPrefix(name, "x-remote-") || strings.HasPrefix(name, "impersonate-") || name == "authorization" || name == "proxy-authorization"
		if personal && !x.removes(f.Name) {
			t.Errorf("%q is forwarded", f.Name)
		}
	}
}
