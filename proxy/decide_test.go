package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// asBob makes a request by bob.
func asBob(path, query string) *Head {
	return &Head{Method: "GET", Path: path, RawQuery: query, RemoteIP: "192.0.2.1", Fields: []hpack.HeaderField{{Name: "authorization", Value: "Bearer token-of-bob"}}}
}

// A request to a remote is limited by the policy, or by a shorter timeout of the caller; a request
// for its discovery by five seconds.
func TestRequestTimeouts(t *testing.T) {
	_, p := thinker(t, worldConfig{change: annotate("request-timeout", "1m")})
	for _, tt := range []struct {
		path, query string
		want        time.Duration
	}{
		{remoteGV + "/widgets", "", time.Minute},
		{remoteGV + "/widgets", "timeout=2s", 2 * time.Second},
		{remoteGV + "/widgets", "timeout=2m", time.Minute},
		{remoteGV + "/widgets", "watch=1", 0},
		{remoteGV, "", 5 * time.Second},
		{remoteGV + "/", "", 5 * time.Second},
		{remoteGV, "timeout=32s", 5 * time.Second}, // as kubectl sends it
		{remoteGV, "timeout=1s", time.Second},
		{"/api/v1/pods", "timeout=1s", 0}, // the local apiserver enforces it
		{remoteGV + "/widgets", "timeout=0s", time.Minute},
		{remoteGV + "/widgets", "timeout=", time.Minute},
		{remoteGV + "/widgets", "watch=1&timeout=x", 0},
	} {
		if d, _ := p.decision(t.Context(), asBob(tt.path, tt.query), nil, true); d.Err != nil || d.Timeout != tt.want {
			t.Errorf("%s?%s: %v, want %v (%v)", tt.path, tt.query, d.Timeout, tt.want, d.Err)
		}
	}
	for _, query := range []string{"timeout=x", "timeout=-1s", "timeout=1"} {
		if d, _ := p.decision(t.Context(), asBob(remoteGV+"/widgets", query), nil, true); d.Action != Refuse || !apierrors.IsBadRequest(d.Err) {
			t.Errorf("%s: %v (%v)", query, d.Action, d.Err)
		}
	}
}

// Pages that stream have no time limit.
func TestLongPages(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	for path, want := range map[string]bool{"/fairlead/events": true, "/fairlead/tap": true, "/fairlead/status": false, "/fairlead/events/x": false} {
		if d, _ := p.decision(t.Context(), asBob(path, ""), nil, true); d.Action != ToPage || d.LongRunning != want {
			t.Errorf("%s: %v, long-running %v", path, d.Action, d.LongRunning)
		}
	}
}

// Without waiting, nothing is decided that needs a review, and everything else is.
func TestDecidedAtOnce(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	decided := func(name string, h *Head, wait, want bool) (d Decision) {
		t.Helper()
		d, known := p.decision(t.Context(), h, nil, wait)
		if known != want {
			t.Errorf("%s: known %v, %v (%v)", name, known, d.Action, d.Err)
		}
		return d
	}
	widgets, secrets := asBob(remoteGV+"/widgets", ""), asBob(remoteGV+"/secrets", "")
	decided("who the caller is", widgets, false, false)
	decided("who the caller is, in time", widgets, true, true)
	decided("a known caller", widgets, false, true)
	decided("what a known caller may do", secrets, false, false)
	decided("what a known caller may do, in time", secrets, true, true)
	p.RejectNew()
	if d := decided("new requests during a drain", asBob(remoteGV+"/gadgets", ""), false, true); !apierrors.IsTooManyRequests(d.Err) {
		t.Errorf("%v (%v)", d.Action, d.Err)
	}
}

// A user whose name HTTP would change reaches nobody.
func TestUserThatCannotBeAsserted(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	h := asBob(remoteGV+"/widgets", "")
	h.Fields[0].Value = "Bearer token-of-bob\nroot"
	if d, _ := p.decision(t.Context(), h, nil, true); d.Action != Refuse || !apierrors.IsUnauthorized(d.Err) {
		t.Errorf("%v as %v (%v)", d.Action, d.User, d.Err)
	}
}

// Health paths are answered here first, and no others. /livez is only Fairlead's own without a
// local apiserver.
func TestOwnHealthPaths(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	for _, alone := range []bool{false, true} {
		if alone {
			p.cfg.Local = nil
		}
		for path, want := range map[string]bool{
			"/readyz": true, "/readyz/": true, "/readyz/etcd": true, "/healthz": true, "/healthz/ping": true, "/livez": alone, "/livez/ping": alone,
			"/readyzz": false, "/healthz-x": false, "/livezx": false, "/": false, "/api": false,
		} {
			if got := p.ownHealth(path); got != want {
				t.Errorf("%s, alone %v: %v", path, alone, got)
			}
		}
	}
}

// While the table is incomplete, requests for unknown APIs are refused; paths outside the API are
// not.
func TestIncompleteTable(t *testing.T) {
	_, p := thinker(t, worldConfig{incomplete: true})
	for path, want := range map[string]Action{
		"/api": Refuse, "/api/v1/pods": Refuse, "/apis": Refuse, "/apis/none.example.com/v1": Refuse, "/openapi/v2": Refuse, "/openapi/v3/apis/none.example.com/v1": Refuse,
		"/version": ToLocal, "/metrics": ToLocal, "/readyz": ToHealth, "/fairlead/status": ToPage,
	} {
		if d, _ := p.decision(t.Context(), asBob(path, ""), nil, true); d.Action != want {
			t.Errorf("%s: %v, want %v (%v)", path, d.Action, want, d.Err)
		}
	}
}

// With --authorization-mode=backend, remotes authorize requests themselves. Requests that Fairlead
// answers itself are still authorized.
func TestRemotesLeftToThemselves(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	p.cfg.Documents = http.NotFoundHandler()
	p.cfg.Authz = must.Get(authz.New(authz.Config{LeaveRemotes: true}))(t) // without Review, all else is refused
	for path, want := range map[string]Action{
		remoteGV: ToRemote, remoteGV + "/widgets": ToRemote, "/api/v1/pods": ToLocal,
		"/apis": Refuse, "/apis/remote.example.com": Refuse, "/openapi/v2": Refuse, "/fairlead/status": Refuse,
	} {
		if d, _ := p.decision(t.Context(), asBob(path, ""), nil, true); d.Action != want {
			t.Errorf("%s: %v, want %v (%v)", path, d.Action, want, d.Err)
		}
	}
	p.cfg.Local = nil
	if d, _ := p.decision(t.Context(), asBob("/apis/apps/v1/deployments", ""), nil, true); !apierrors.IsForbidden(d.Err) {
		t.Errorf("without a local apiserver, its paths: %v", d.Err)
	}
}

// Without a local apiserver, only the APIs of the table exist; other paths are Fairlead's own
// pages.
func TestNoLocalAPIServer(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	p.cfg.Local = nil
	for path, want := range map[string]Action{
		"/api/v1/pods": Refuse, "/apis/apps/v1/deployments": Refuse, remoteGV: ToRemote, "/": ToPage, "/metrics": ToPage,
	} {
		if d, _ := p.decision(t.Context(), asBob(path, ""), nil, true); d.Action != want || want == Refuse && !apierrors.IsNotFound(d.Err) {
			t.Errorf("%s: %v, want %v (%v)", path, d.Action, want, d.Err)
		}
	}
}

// The authorizer gets every attribute of a request, for a path or a resource. So it does when it is
// asked whether the caller may do that as somebody else.
func TestWhatIsAuthorized(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	var got string
	asked := map[string]bool{}
	p.cfg.Authz = must.Get(authz.New(authz.Config{AllowTTL: -1, Review: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		labels, _ := a.GetLabelSelector()
		fields, _ := a.GetFieldSelector()
		got = fmt.Sprintf("%s %s: %s", a.GetUser().GetName(), a.GetVerb(), a.GetPath())
		if a.IsResourceRequest() {
			got = fmt.Sprintf("%s %s: %s/%s %s/%s of %s/%s, %v %v", a.GetUser().GetName(), a.GetVerb(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetNamespace(), a.GetName(),
				a.GetResource(), a.GetSubresource(), labels, fields)
		}
		asked[got] = true
		return authorizer.DecisionAllow, "", nil
	}}))(t)
	for _, tt := range []struct{ path, query, want string }{
		{remoteGV, "", "bob get: " + remoteGV},
		{remoteGV + "/namespaces/a/widgets/b/status", "", "bob get: " + remoteGV[len("/apis/"):] + " a/b of widgets/status,  []"},
		{remoteGV + "/widgets", "labelSelector=x%3Dy&fieldSelector=z%3D1&watch=1", "bob watch: " + remoteGV[len("/apis/"):] + " / of widgets/, x=y [{= z 1}]"},
	} {
		got = ""
		d, _ := p.decision(t.Context(), asBob(tt.path, tt.query), nil, true)
		if d.Action != ToRemote || got != tt.want {
			t.Errorf("%s: %v, asked %q, want %q", tt.path, d.Action, got, tt.want)
		}
		r := p.asUser(httptest.NewRequest("GET", "/", nil), &exchange{decision: d})
		r.Header.Set("Impersonate-User", "jane")
		p.impersonation(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
		if want := strings.Replace(tt.want, "bob ", "bob impersonate-on:user-info:", 1); !asked[want] {
			t.Errorf("%s as jane: asked %v, want %q", tt.path, asked, want)
		}
	}
}

// A token among a WebSocket's protocols is sent only to the server that authenticates it. The other
// protocols are always forwarded.
func TestUpgradeTokens(t *testing.T) {
	const exec = "/api/v1/namespaces/a/pods/b/exec"
	const token = "base64url.bearer.authorization.k8s.io.dG9rZW4tb2YtYm9i" // token-of-bob
	for _, tt := range []struct {
		name        string
		impersonate bool
		path        string
		certificate bool // alice's, beside the token
		want        string
	}{
		{"to the local apiserver, which judges it", false, exec, false, token + ",v5.channel.k8s.io"},
		{"with a certificate, which counts", false, exec, true, "v5.channel.k8s.io"},
		{"with a certificate, impersonated", true, exec, true, "v5.channel.k8s.io"},
		{"to a remote", false, remoteGV + exec[len("/api/v1"):], false, "v5.channel.k8s.io"},
	} {
		w := newWorld(t, worldConfig{impersonate: tt.impersonate, local: switching, remote: switching})
		var pair *pki.Pair
		if tt.certificate {
			pair = w.client.Issue(pki.Leaf{CommonName: "alice"})
		}
		const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: " + token + ",v5.channel.k8s.io\r\n\r\n"
		res, _, _ := w.say(t, pair, "GET "+tt.path+" HTTP/1.1\r\nHost: x\r\n"+upgrade)
		far := w.local
		if tt.path != exec {
			far = w.remote
		}
		if got := far.last(t).header.Get("Sec-Websocket-Protocol"); res.StatusCode != http.StatusSwitchingProtocols || got != tt.want {
			t.Errorf("%s: %d, it got %q, want %q", tt.name, res.StatusCode, got, tt.want)
		}
	}
}

// A backend that refuses an upgrade and never ends its answer is cut off after refusalTimeout.
func TestRefusalThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		go func() { _, _ = io.WriteString(far, "HTTP/1.1 403 Forbidden\r\nContent-Length: 10\r\n\r\nno") }()
		res := must.Get(http.ReadResponse(bufio.NewReader(near), nil))(t)
		begun := time.Now()
		defer func() {
			if cut, _ := recover().(error); !errors.Is(cut, http.ErrAbortHandler) || time.Since(begun) != refusalTimeout {
				t.Errorf("after %v: %v", time.Since(begun), cut)
			}
		}()
		(&Proxy{log: slog.New(slog.DiscardHandler)}).relayRefusal(httptest.NewRecorder(), near, res)
	})
}

// usualHead is the head of a client-go controller with a service account's token.
func usualHead() *Head {
	return &Head{
		Method: "GET", Authority: "127.0.0.1:6443", Path: remoteGV + "/namespaces/default/widgets/one", RemoteIP: "192.0.2.1",
		Fields: []hpack.HeaderField{
			{Name: "accept", Value: "application/json"}, {Name: "user-agent", Value: "controller/1 (linux/amd64) kubernetes/unknown"},
			{Name: "accept-encoding", Value: "gzip"}, {Name: "authorization", Value: "Bearer token-of-" + strings.Repeat("x", 900)},
		},
	}
}

// decision calls decide with a new Decision.
func (p *Proxy) decision(ctx context.Context, h *Head, c *authn.Conn, wait bool) (d Decision, known bool) {
	known = p.decide(ctx, &d, h, c, wait)
	return d, known
}

// A decision that needs no I/O allocates nothing.
func TestDecideAllocates(t *testing.T) {
	w := newWorld(t, worldConfig{})
	h, c := usualHead(), &authn.Conn{}
	if d, _ := w.proxy.decision(t.Context(), h, c, true); d.Action != ToRemote {
		t.Fatalf("%v: %v", d.Action, d.Err)
	}
	allocatesNothing(t, w.proxy, h, c)
}

// allocatesNothing checks that a decision without I/O allocates nothing.
func allocatesNothing(t *testing.T, p *Proxy, h *Head, c *authn.Conn) {
	t.Helper()
	var d Decision
	if n := testing.AllocsPerRun(1000, func() {
		if !p.decide(t.Context(), &d, h, c, false) {
			t.Fatal("undecided without I/O")
		}
	}); n > 0 {
		t.Errorf("%v: %v allocations", h.Fields, n)
	}
}
