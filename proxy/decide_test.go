package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// of makes a request of a stranger.
func of(method, path, query string, fields []hpack.HeaderField) *Head {
	return &Head{Head: wire.Head{Method: method, Path: path, RawQuery: query, Fields: fields}, Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
}

func with(token string) []hpack.HeaderField {
	return []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + token}}
}

func asBob(path, query string) *Head { return of("GET", path, query, with("token-of-bob")) }

// ask lets the loop decide about a request with a token. The plan may come later.
func (w *world) ask(conn *h2.ConnInfo, token string) <-chan engine.Plan {
	plan := make(chan engine.Plan, 1)
	h := of("GET", remoteGV+"/widgets", "", with(token))
	if p, ok := w.proxy.frames.decide(conn, &h.Head, func(p engine.Plan) { plan <- p }); ok {
		plan <- p
	}
	return plan
}

// Where a path leads depends on what this process has: a local apiserver, documents, a complete
// table. Pages that stream have no time limit.
func TestWhereRequestsGo(t *testing.T) {
	alone := func(p *Proxy) { p.cfg.Local = nil }
	documents := func(p *Proxy) { p.cfg.Documents = http.NotFoundHandler() }
	directory := worldConfig{incomplete: true, also: func(in *registry.Input) { in.Options.Directory = true }}
	const services = "/apis/apiregistration.k8s.io/v1/apiservices"
	for name, tc := range map[string]struct {
		world  worldConfig
		change func(*Proxy)
		want   map[string]Action
		err    func(error) bool // of what is refused
		long   []string
	}{
		"beside a local apiserver": {want: map[string]Action{
			"/": ToLocal, "/api": ToLocal, "/api/v1/pods": ToLocal, "/apis": ToLocal, "/apis/apps/v1/deployments": ToLocal, "/metrics": ToLocal, remoteGV: ToRemote,
			"/fairlead/status": ToPage, "/fairlead/events": ToPage, "/fairlead/events/x": ToPage, "/fairlead/tap": ToPage,
			"/readyz": ToHealth, "/readyz/": ToHealth, "/readyz/etcd": ToHealth, "/healthz": ToHealth, "/healthz/ping": ToHealth, "/livez": ToLocal, "/livez/ping": ToLocal,
			"/readyzz": ToLocal, "/healthz-x": ToLocal, "/livezx": ToLocal,
		}, long: []string{"/fairlead/events", "/fairlead/tap"}},
		"with documents": {change: documents, want: map[string]Action{"/apis": ToDocument, "/openapi/v2": ToDocument, "/apis/remote.example.com": ToDocument, "/api/v1/pods": ToLocal}},
		"alone, only the APIs of the table exist": {change: alone, want: map[string]Action{
			"/api/v1/pods": Refuse, "/apis/apps/v1/deployments": Refuse, remoteGV: ToRemote, "/apis": ToPage, "/": ToPage, "/metrics": ToPage,
			"/readyz": ToHealth, "/livez": ToHealth, "/livez/ping": ToHealth, "/livezx": ToPage,
		}, err: apierrors.IsNotFound},
		"while the table is incomplete, unknown APIs are refused": {world: worldConfig{incomplete: true}, want: map[string]Action{
			"/api": Refuse, "/api/v1/pods": Refuse, "/apis": Refuse, "/apis/none.example.com/v1": Refuse, "/openapi/v2": Refuse, "/openapi/v3/apis/none.example.com/v1": Refuse,
			"/version": ToLocal, "/metrics": ToLocal, "/readyz": ToHealth, "/fairlead/status": ToPage,
		}, err: apierrors.IsServiceUnavailable},
		"before it is known what several local apiservers serve": {change: func(p *Proxy) {
			documents(p)
			p.cfg.Local.Follow([]string{"127.0.0.1:1", "192.0.2.1:6443"})
		}, want: map[string]Action{
			"/api/v1/pods": Refuse, "/apis/apps/v1/deployments": Refuse, "/apis": ToDocument, remoteGV: ToRemote,
			"/version": ToLocal, "/metrics": ToLocal, "/readyz": ToHealth, "/fairlead/status": ToPage,
		}, err: apierrors.IsServiceUnavailable},
		"the dir: registry's own group":        {world: directory, want: map[string]Action{services: ToPage, services + "?watch=1": ToPage}, long: []string{services + "?watch=1"}},
		"the dir: registry's own group, alone": {world: directory, change: alone, want: map[string]Action{services: ToPage, services + "?watch=1": ToPage}, long: []string{services + "?watch=1"}},
		"a remote that claims a protected group": {world: worldConfig{also: func(in *registry.Input) {
			thief := in.APIServices["v1.remote.example.com"].DeepCopy()
			thief.Name, thief.Spec.Group = "v1.batch", "batch"
			in.APIServices[thief.Name] = thief
		}}, want: map[string]Action{"/apis/batch/v1/jobs": Refuse}, err: apierrors.IsServiceUnavailable},
		"remotes that authorize themselves (--authorization-mode=backend)": {change: func(p *Proxy) {
			documents(p)
			p.cfg.Authz = must.Get(authz.New(authz.Config{LeaveRemotes: true}))(t) // without Review, all else is refused
		}, want: map[string]Action{
			remoteGV: ToRemote, remoteGV + "/widgets": ToRemote, "/api/v1/pods": ToLocal, "/apis": Refuse, "/apis/remote.example.com": Refuse, "/openapi/v2": Refuse, "/fairlead/status": Refuse,
		}},
		"remotes that authorize themselves, alone": {change: func(p *Proxy) {
			alone(p)
			p.cfg.Authz = must.Get(authz.New(authz.Config{LeaveRemotes: true}))(t)
		}, want: map[string]Action{"/apis/apps/v1/deployments": Refuse}, err: apierrors.IsForbidden},
	} {
		_, p := thinker(t, tc.world)
		if tc.change != nil {
			tc.change(p)
		}
		for target, want := range tc.want {
			path, query, _ := strings.Cut(target, "?")
			d, _ := p.decision(t.Context(), asBob(path, query), nil, true)
			check.Same(t, fmt.Sprint(want, slices.Contains(tc.long, target)), fmt.Sprint(d.Action, d.LongRunning), "%s: %s: where it leads, and whether it is long-running (%v)", name, target, d.Err)
			check.Same(t, true, want != Refuse || tc.err == nil || tc.err(d.Err), "%s: %s: refused with %v", name, target, d.Err)
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
		check.Same(t, fmt.Sprint(ToRemote, " ", tt.want), fmt.Sprint(d.Action, " ", got), "%s: where it leads, and what was asked", tt.path)
		r := (&exchange{decision: d}).asUser(httptest.NewRequest("GET", "/", nil))
		r.Header.Set("Impersonate-User", "jane")
		p.impersonation(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
		check.Same(t, true, asked[strings.Replace(tt.want, "bob ", "bob impersonate-on:user-info:", 1)], "%s as jane: asked %v", tt.path, asked)
	}
}

// usualHead is the head of a client-go controller with a service account's token.
func usualHead() *Head {
	return &Head{Head: wire.Head{Method: "GET", Authority: "127.0.0.1:6443", Path: remoteGV + "/namespaces/default/widgets/one", Fields: []hpack.HeaderField{
		{Name: "accept", Value: "application/json"}, {Name: "user-agent", Value: "controller/1 (linux/amd64) kubernetes/unknown"},
		{Name: "accept-encoding", Value: "gzip"}, {Name: "authorization", Value: "Bearer token-of-" + strings.Repeat("x", 900)},
	}}, RemoteIP: "192.0.2.1"}
}

// decision makes a new Decision, as the loop does, or as those do that may wait.
func (p *Proxy) decision(ctx context.Context, h *Head, c *authn.Conn, wait bool) (d Decision, known bool) {
	if wait {
		p.decideOffLoop(ctx, &d, h, c)
	} else {
		_ = p.decide(&d, h, c, time.Now()) // d.Err
	}
	_, lacks := d.Err.(Need) //nolint:errorlint // nobody wraps it
	return d, !lacks
}
