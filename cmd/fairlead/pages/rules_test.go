package pages

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

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
		q := url.Values{"path": {tt.path}}
		maps.Copy(q, tt.query)
		_, body := s.get(t, "/explain?"+q.Encode())
		var x answer.Explanation
		must.Do(t, json.Unmarshal([]byte(body), &x))
		authorization, _, _ := strings.Cut(x.Authorization, ":")
		got := fmt.Sprintf("%s %d %s", x.Destination, x.Code, authorization)
		for _, r := range x.Rules {
			got += " " + r.Name
			check.Same(t, 0, int(r.Refused+r.Passed), "requests of rule %s", r.Name)
		}
		check.Same(t, tt.want, got, "%s %s", tt.path, tt.query)
		says(t, body, tt.says...)
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
	s := newStand(t, someRules+many.String())
	for _, g := range s.registry.Table().Rules().All()[1:4] {
		for range 5 {
			_, _, _ = g.Enter(bound.Source{User: "bob"}, time.Now())
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
	says(t, body, "Rules of the policy", "InFlight, dry run, allows 3 requests at a time", "until &lt;b&gt;Monday&lt;/b&gt;", `<p class="warn">freeze (`, "5 refused, 0 passed: Deny", "4 more rules of the policy are not listed")
	s = newStand(t)
	if _, body = s.get(t, "/status"); strings.Contains(body, `"rules"`) {
		t.Errorf("there is no rule, and the status says: %s", body)
	}
}
