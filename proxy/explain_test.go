package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/policy"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// Explain says why a review failed, which the answer to the request does not.
func TestExplainFailedReview(t *testing.T) {
	w := newWorld(t, worldConfig{reviewed: func() error { return errors.New("dial tcp 10.0.0.1:6443: connection refused") }})
	_, denied := w.proxy.Explain(t.Context(), http.MethodGet, remoteGV+"/widgets", "", "", &user.DefaultInfo{Name: "jane"})
	check.Same(t, "the request could not be authorized: authorizing: dial tcp 10.0.0.1:6443: connection refused", fmt.Sprint(denied), "denied")
}

// Explain says that the user's request would get 429 now, without counting one.
func TestExplainAtTheLimit(t *testing.T) {
	w := newWorld(t, worldConfig{Config: Config{MaxInFlight: 2}})
	want := func(when string, read, watch int) {
		t.Helper()
		for target, want := range map[string]int{remoteGV + "/widgets": read, remoteGV + "/widgets?watch=1": watch} {
			d, denied := w.proxy.Explain(t.Context(), http.MethodGet, target, "", "", &user.DefaultInfo{Name: "bob"})
			check.Same(t, [2]int{0, want}, [2]int{statusOf(denied), statusOf(d.Err)}, "%s: %s: denied, and refused", when, target)
		}
	}
	want("at rest", 0, 0)
	ann, _ := w.proxy.limits.reads.places.Take(bound.Source{User: "ann"}, 1, 2)
	carol, _ := w.proxy.limits.reads.places.Take(bound.Source{User: "carol"}, 1, 2)
	want("the server is full", 429, 0)
	ann.Leave()
	carol.Leave()
	fillUp(t, w.upstream(), true)
	before := w.upstream().Limits()
	want("the backend has no place for a watch", 0, 429)
	check.Same(t, before[0].Refused, w.upstream().Limits()[0].Refused, "refused requests")
	w.proxy.RejectNew()
	want("it drains", 429, 429)
}

// A rule stands before the local apiserver, which authorizes what passes. To explain counts none.
func TestExplainRuled(t *testing.T) {
	const text = `apiVersion: fairlead.dev/v1
kind: Policy
rules:
- {name: office, sources: [192.0.2.0/24], action: Allow}
- {name: trial, match: {subjects: [{kind: User, user: {name: dora}}]}, action: Deny, dryRun: true}
- {name: whole, match: {resourceRules: [{verbs: [list], apiGroups: [""], resources: [events], namespaces: ["*"], clusterScope: true}]}, wholeLists: true, action: Deny}
- {name: slow, match: {resourceRules: [{verbs: [list], apiGroups: ["*"], resources: ["*"], namespaces: ["*"]}]}, action: Rate, perSecond: 0.01}
- {name: freeze, match: {resourceRules: [{verbs: [create], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}]}, action: Deny}
`
	w := newWorld(t, worldConfig{also: func(in *registry.Input) { scene.SetPolicy(t, in, "p.yaml", text) }})
	ctx := context.WithValue(t.Context(), exchangeKey{}, &exchange{head: &Head{RemoteIP: "192.0.2.9"}}) // who asks
	for _, tt := range []struct {
		method, target, user, source string
		want                         string // rule, dry run, code
	}{
		{http.MethodPost, "/api/v1/namespaces/a/pods", "jane", "10.0.0.7", "freeze  403"},
		{http.MethodPost, remoteGV + "/widgets", "jane", "10.0.0.7", "freeze  403"},
		{http.MethodPost, "/api/v1/namespaces/a/pods", "jane", "192.0.2.7", "office  0"},
		{http.MethodPost, "/api/v1/namespaces/a/pods", "jane", "", "office  0"},
		{http.MethodGet, "/api/v1/namespaces/a/pods", "jane", "10.0.0.7", "slow  0"},
		{http.MethodGet, "/api/v1/events?fieldSelector=metadata.name%3Dx", "jane", "10.0.0.7", "whole  403"},
		{http.MethodGet, "/api/v1/events?fieldSelector=metadata.name%3Dx&limit=5", "jane", "10.0.0.7", "  0"},
		{http.MethodGet, "/api/v1/namespaces/a/events?fieldSelector=metadata.name%3Dx", "jane", "10.0.0.7", "slow  0"},
		{http.MethodGet, "/api/v1/namespaces/a/events?fieldSelector=metadata.name%3Dx&continue=y", "jane", "10.0.0.7", "whole  403"},
		{http.MethodGet, "/api/v1/events?resourceVersion=0", "jane", "10.0.0.7", "whole  403"},
		{http.MethodGet, "/api/v1/events?resourceVersion=0&limit=500", "jane", "10.0.0.7", "  0"},
		{http.MethodGet, "/api/v1/namespaces/a/pods", "dora", "10.0.0.7", "slow trial 0"},
		{http.MethodPost, "/api/v1/namespaces/a/pods", "system:fairlead", "10.0.0.7", "  0"},
		{http.MethodGet, "/readyz", "dora", "10.0.0.7", "  0"},
		{http.MethodGet, "/livez", "dora", "10.0.0.7", "  0"},
	} {
		for range 3 { // a second is not too many
			d, denied := w.proxy.Explain(ctx, tt.method, tt.target, "", tt.source, &user.DefaultInfo{Name: tt.user})
			name := func(g *policy.Gate) string {
				if g == nil {
					return ""
				}
				refused, passed := g.Count()
				check.Same(t, 0, int(refused+passed), "requests of %s", g.Name)
				return g.Name
			}
			check.Same(t, tt.want, fmt.Sprintf("%s %s %d", name(d.Rule), name(d.DryRun), statusOf(denied)), "%s %s by %s from %s", tt.method, tt.target, tt.user, tt.source)
		}
	}
}

// Whom this process may not impersonate it refuses, unless the cluster knows the token.
func TestExplainNotImpersonated(t *testing.T) {
	w := newWorld(t, worldConfig{impersonate: true})
	root := &user.DefaultInfo{Name: "root", Groups: []string{"system:masters"}}
	robot := &user.DefaultInfo{Name: "system:serviceaccount:a:b", Groups: []string{"system:serviceaccounts"}}
	for _, tt := range []struct {
		kind authn.Kind // with which root asks
		u    user.Info
		want int
	}{{authn.KindCertificate, root, 403}, {authn.KindToken, root, 0}, {authn.KindToken, robot, 0}} {
		asks := &exchange{head: &Head{RemoteIP: "192.0.2.9"}, decision: Decision{User: root, Credentials: authn.Credentials{Kind: tt.kind}}}
		for _, target := range []string{"/api/v1/namespaces/a/pods", remoteGV + "/widgets", "/readyz"} {
			d, denied := w.proxy.Explain(context.WithValue(t.Context(), exchangeKey{}, asks), http.MethodGet, target, "", "", tt.u)
			check.Same(t, [2]int{tt.want, 0}, [2]int{statusOf(d.Err), statusOf(denied)}, "%s by %s: refused, and denied", target, tt.u.GetName())
		}
	}
}
