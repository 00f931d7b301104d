package pages

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
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
	says(t, body, "answers now: standby v1.bad.example.com/spare", "policy.yaml:13): answered with 404", "further backend of v1.good.example.com by the policy (", "apiservice/v1.good.example.com%2Fkeda")
	s.cfg.Discovery = func() []discovery.Status {
		return []discovery.Status{{Freshness: documents.Freshness{Name: "v1.good.example.com"}, Conflicts: []string{"widgets: other kind", "gadgets: other verbs"}}}
	}
	_, body = s.get(t, "/")
	says(t, body, "resources are not listed as this server has them: widgets: other kind; gadgets: other verbs", "let one of the two have each")
	resp, body := s.get(t, "/fairlead/apiservice/v1.good.example.com%2Fkeda")
	check.Same(t, http.StatusOK, resp.Code, "its page")
	says(t, body, "policy.yaml:6)", "x/closed-example-com:443")
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
		if tt.query == nil {
			tt.query = url.Values{}
		}
		tt.query.Set("path", tt.path)
		_, body := s.get(t, "/explain?"+tt.query.Encode())
		var x answer.Explanation
		must.Do(t, json.Unmarshal([]byte(body), &x))
		check.Same(t, tt.to, x.Destination+" "+x.APIService.Name, "%s %s", tt.path, tt.query)
		says(t, body, tt.why...)
	}
}
