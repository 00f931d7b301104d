package pages

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/registry/documents"
	"github.com/fairlead-proxy/fairlead/registry/documents/discovery"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const aPolicy = `apiVersion: fairlead.dev/v1
kind: Policy
routes:
- apiService: v1.good.example.com
  backends:
  - {name: keda, service: {namespace: x, name: closed-example-com}, insecureSkipTLSVerify: true, when: {labelKeys: [keda/name]}}
  - {name: team, service: {namespace: x, name: closed-example-com}, insecureSkipTLSVerify: true, when: {namespaces: [team]}}
  - {name: bob, service: {namespace: x, name: closed-example-com}, insecureSkipTLSVerify: true, when: {users: [bob], groups: [system:authenticated]}}
  - {name: argo, service: {namespace: x, name: closed-example-com}, insecureSkipTLSVerify: true, when: {userAgents: [argo*]}}
- apiService: v1.bad.example.com
  backends:
  - {name: spare, service: {namespace: x, name: good-example-com}, insecureSkipTLSVerify: true, standby: true}
- apiService: v1.lost.example.com
  hidden: true
`

// Each server that the policy adds is a row of its own, with its place in the policy.
func TestPolicyIsShown(t *testing.T) {
	s := newStand(t, aPolicy)
	var got answer.Status
	_, body := s.get(t, "/status")
	must.Do(t, json.Unmarshal([]byte(body), &got))
	var lines []string
	for _, a := range got.APIServices {
		if hidden := strings.HasPrefix(a.Name, "v1.lost."); !a.Available() { // of which nothing is to be done
			check.Same(t, !hidden, a.Cause+a.Advice+a.Command+a.Runbook != "", "%s: help", a.Name)
		}
		if text := a.Policy(); text != "" {
			at, _, _ := strings.Cut(text[strings.LastIndex(text, ":")+1:], ")")
			lines = append(lines, fmt.Sprintf("%s %s %d/%d line %s", a.Name, a.Verdict.Status, a.Healthy(), len(a.Endpoints), at))
		}
	}
	check.Same(t, []string{
		"v1.lost.example.com False 0/0 line  answered with 404",
		"v1.bad.example.com False 0/1 line  standby v1.bad.example.com/spare",
		"v1.bad.example.com/spare True 1/1 line 12",
		"v1.good.example.com/keda True 1/1 line 6", "v1.good.example.com/team True 1/1 line 7", "v1.good.example.com/bob True 1/1 line 8", "v1.good.example.com/argo True 1/1 line 9",
	}, lines, "what the policy says")
	_, body = s.get(t, "/")
	check.Has(t, body, "answers now: standby v1.bad.example.com/spare", "policy.yaml:13): answered with 404", "further backend of v1.good.example.com by the policy (", "apiservice/v1.good.example.com%2Fkeda")
	s.cfg.Discovery = func() []discovery.Status {
		return []discovery.Status{
			{Freshness: documents.Freshness{Name: "v1.good.example.com"}, Conflicts: []string{"widgets: other kind", "gadgets: other verbs"}},
			{Freshness: documents.Freshness{Name: "v1.good.example.com/keda", Reason: "invalid", Message: "a bad document"}, Stale: true},
		}
	}
	_, body = s.get(t, "/")
	check.Has(t, body, "resources are not listed as this server has them: widgets: other kind; gadgets: other verbs", "let one of the two have each",
		"no namespace can be deleted: discovery: invalid: a bad document", "if it is the only one, what kubectl get --raw /apis/good.example.com/v1 says", "FairleadDiscoveryStale.md")
	resp, body := s.get(t, "/fairlead/apiservice/v1.good.example.com%2Fkeda")
	check.Same(t, http.StatusOK, resp.Code, "its page")
	check.Has(t, body, "policy.yaml:6)", "x/closed-example-com:443")
}

// The explanation names the server and the rule by which it gets the request, and says why no other does.
func TestExplainPolicy(t *testing.T) {
	s := newStand(t, aPolicy)
	const good = "/apis/good.example.com/v1"
	for _, tt := range []struct {
		path  string
		query url.Values
		to    string
		why   []string
	}{
		{good + "/widgets?labelSelector=keda%2Fname%3Da", nil, "remote v1.good.example.com/keda", []string{
			"it goes to v1.good.example.com/keda, x/closed-example-com:443: the first rule of the policy that matches (", "policy.yaml:6)", "not to v1.good.example.com/bob, x/closed-example-com:443: its users do not match",
		}},
		{good + "/namespaces/team/widgets?labelSelector=keda%2Fname%3Da", nil, "remote v1.good.example.com/keda", []string{"not to v1.good.example.com/team, x/closed-example-com:443: its rule matches too, and comes later"}},
		{good + "/namespaces/team/widgets", nil, "remote v1.good.example.com/team", []string{"policy.yaml:7)", "its labelKeys do not match"}},
		{good + "/namespaces/other/widgets", nil, "remote v1.good.example.com", []string{"its namespaces do not match", "no rule of the policy matches, so that the APIService's own backend answers"}},
		{good + "/widgets", nil, "remote v1.good.example.com", []string{"across namespaces, which no rule by namespace matches", "the APIService's own backend answers", "its userAgents do not match"}},
		{good + "/widgets", url.Values{"user": {"bob"}}, "remote v1.good.example.com/bob", nil},
		{good + "/widgets", url.Values{"agent": {"argocd/2"}}, "remote v1.good.example.com/argo", nil},
		{good, nil, "page v1.good.example.com", []string{"a part of it is that of v1.good.example.com/keda"}}, // the stand has no documents
		{"/apis/bad.example.com/v1/widgets", nil, "remote v1.bad.example.com/spare", []string{"the standby, because the APIService's own backend is unavailable", "policy.yaml:12)", "APIService v1.bad.example.com claims it for service x/bad-example-com:443"}},
		{"/apis/lost.example.com/v1/widgets", nil, "refused v1.lost.example.com", []string{`"cause": "the policy hides it (`, "policy.yaml:13)", `"code": 404`}},
	} {
		x, body := s.explained(t, tt.path, tt.query)
		check.Same(t, tt.to, x.Destination+" "+x.APIService.Name, "%s %s", tt.path, tt.query)
		check.Has(t, body, tt.why...)
	}
}

const someRules = `apiVersion: fairlead.dev/v1
kind: Policy
rules:
- name: office
  sources: [198.51.100.0/24]
  action: Allow
- name: soon
  match: {subjects: [{kind: User, user: {name: bob}}]}
  action: InFlight
  max: 3
  dryRun: true
- name: argo
  userAgents: ["argo*"]
  action: Rate
  perSecond: 0.5
  shared: true
  message: slowly, please
- name: freeze
  match: {subjects: [{kind: User, user: {name: bob}}], resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: [widgets, gadgets], clusterScope: true}]}
  action: Deny
  message: until <b>Monday</b>
`

// The explanation says what the rules of the policy say, and what the answer would be. It counts nothing.
func TestExplainRules(t *testing.T) {
	s := newStand(t, someRules)
	const widgets, gadgets = "/apis/good.example.com/v1/widgets", "/apis/good.example.com/v1/gadgets"
	for _, tt := range []struct {
		path  string
		query url.Values
		want  string // destination, code, authorization, rules
		says  []string
	}{
		{widgets, url.Values{"user": {"bob"}}, "refused 403 denied soon freeze", []string{
			`rule \"freeze\" of the cluster's policy refuses this request: until <b>Monday</b>`, "it matches rule freeze (", "policy.yaml:18), 0 refused, 0 passed: Deny, until", `"action": "Deny"`,
			"it matches rule soon (", "policy.yaml:7), 0 would be refused, 0 passed: InFlight, dry run, allows 3 requests at a time", `"dryRun": true`, `"cause": "rule \"freeze\"`, "put one with action Allow before it",
		}},
		{gadgets, url.Values{"user": {"bob"}}, "refused 403 denied", []string{"cannot list"}},
		{widgets, url.Values{"user": {"bob"}, "source": {"198.51.100.7"}}, "remote 0 allowed office", []string{"office (", "policy.yaml:4), 0 refused, 0 passed: Allow"}},
		{widgets, url.Values{"agent": {"argocd/2"}}, "remote 0 allowed argo", []string{"argo (", "policy.yaml:12), 0 refused, 0 passed: Rate, allows 0.5 requests a second in all, slowly, please"}},
		{widgets, nil, "remote 0 allowed", nil},
	} {
		x, body := s.explained(t, tt.path, tt.query)
		authorization, _, _ := strings.Cut(x.Authorization, ":")
		got := fmt.Sprintf("%s %d %s", x.Destination, x.Code, authorization)
		for _, r := range x.Rules {
			got += " " + r.Name
			check.Same(t, 0, int(r.Refused+r.Passed), "requests of rule %s", r.Name)
		}
		check.Same(t, tt.want, got, "%s %s", tt.path, tt.query)
		check.Has(t, body, tt.says...)
	}
	resp, _ := s.get(t, "/explain?source=here&path="+widgets)
	check.Same(t, http.StatusBadRequest, resp.Code, "an address that is none")
}

// Status and page list the rules, those that refuse most first.
func TestRulesAreShown(t *testing.T) {
	var many strings.Builder
	for i := range 100 {
		fmt.Fprintf(&many, "- {name: more-%d, userAgents: [x], action: Allow}\n", i)
	}
	s, now := newStand(t, someRules+many.String()), time.Now()
	for _, g := range s.registry.Table().Rules().All()[1:4] {
		for range 5 {
			_, _, _ = g.Enter(bound.Source{User: "bob"}, now)
		}
	}
	_, body := s.get(t, "/status")
	var got answer.Status
	must.Do(t, json.Unmarshal([]byte(body), &got))
	var lines []string
	for _, r := range got.Rules[:4] {
		lines = append(lines, fmt.Sprintf("%s %t %d %d", r.Name, r.DryRun, r.Refused, r.Passed))
	}
	check.Same(t, []string{"freeze false 5 0", "argo false 4 1", "soon true 2 3", "office false 0 0"}, lines, "rules")
	check.Same(t, [2]any{100, []string{"4 more rules of the policy are not listed"}}, [2]any{len(got.Rules), got.Notes}, "rules, and how many more")
	_, body = s.get(t, "/")
	check.Has(t, body, "Rules of the policy", "InFlight, dry run, allows 3 requests at a time", "until &lt;b&gt;Monday&lt;/b&gt;", `<p class="warn">freeze (`, "5 refused, 0 passed: Deny", "4 more rules of the policy are not listed")
	s = newStand(t)
	_, body = s.get(t, "/status")
	check.Lacks(t, body, `"rules"`) // there is none
}
