package pages

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func TestStatus(t *testing.T) {
	s := newStand(t)
	for _, path := range []string{"/status", "/fairlead/status"} {
		resp, body := s.get(t, path)
		var got answer.Status
		must.Do(t, json.Unmarshal([]byte(body), &got))
		if resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", path, resp.Header)
		}
		var lines []string
		for _, a := range got.APIServices {
			if a.Kind == "local" {
				continue // the registry's own
			}
			lines = append(lines, fmt.Sprint(a.Name, " ", a.Kind, " ", a.Service, " ", a.Verdict.Status, " ", a.Verdict.Reason, " ", a.Healthy(), "/", len(a.Endpoints), " ", a.Available()))
		}
		want := []string{
			"v1.lost.example.com remote x/nobody:443 False ServiceNotFound 0/0 false",
			"v1.bad.example.com remote x/bad-example-com:443 False FailedDiscoveryCheck 0/1 false",
			"v1.closed.example.com remote x/closed-example-com:443 False Maintenance 1/1 false",
			"v1.good.example.com remote x/good-example-com:443 True Passed 1/1 true",
		}
		check.Same(t, want, lines, "%s", path)
		if got.Version != "v1.2.3" || !got.Complete || got.Generation == 0 || len(got.LocalServers) != 1 || got.LocalTrust == nil || len(got.Certificates) != 1 || got.Ready != "" {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

// Empty lists are [], not null.
func TestNoNull(t *testing.T) {
	p := newStand(t).Pages
	bare := &Pages{cfg: p.cfg}
	bare.cfg.LocalServers, bare.cfg.Certificates = func() []registry.Endpoint { return nil }, func() []certs.Status { return nil }
	for _, v := range []any{p.status(), bare.status()} {
		text := must.Get(json.Marshal(v))(t)
		if strings.Contains(string(text), ":null") {
			t.Errorf("%s", text)
		}
	}
}

// The overview, the APIService's page and the JSON show how current its part of the merged
// documents is.
func TestDocuments(t *testing.T) {
	s := newStand(t)
	for path, wants := range map[string][]string{
		"/status":                         {`"reason": "too_large"`, `"message": "33554433 bytes"`, `"resources": 3`, `"confirmed": "20`, `"v2": false`, `"v3": true`},
		"/":                               {"discovery: too_large"},
		"/apiservice/v1.good.example.com": {"3 resources", "confirmed 90m ago", "33554433 bytes", "no v2, v3, confirmed 0s ago"},
	} {
		_, body := s.get(t, path)
		for _, want := range wants {
			if !strings.Contains(body, want) {
				t.Errorf("%s: %q is missing in:\n%s", path, want, body)
			}
		}
	}
}

// The explanation presents the decision of the proxy that would forward the request.
func TestExplain(t *testing.T) {
	s := newStand(t)
	s.write(t, "urls.yaml", manifest("urls.example.com", `fairlead.dev/url: "https://b.example.com,https://10.0.0.9:8443"`))
	s.write(t, "path.yaml", manifest("path.example.com", `fairlead.dev/url: "https://a.example.com/<b>path</b>"`))
	s.await(t, func(t *registry.Table) bool { return remotes(t) == 6 })
	for _, tc := range []struct {
		name, path, method string
		destination        string
		timeout            string
		code               int
		want               []string // in the JSON
	}{
		{"remote list", "/apis/good.example.com/v1/widgets", "", "remote", "request: 1m0s", 0, []string{"x-remote-user: alice", "x-remote-uid: 7", "its version 1 of 1", `"list"`, "it is forwarded to its endpoint, as good-example-com.x.svc"}},
		{"remote watch", "/apis/good.example.com/v1/widgets?watch=true", "", "remote", "long-running: none", 0, []string{`"watch"`}},
		{"its own timeout", "/apis/good.example.com/v1/widgets?timeout=3s", "", "remote", "request: 3s", 0, nil},
		{"discovery", "/apis/good.example.com/v1", "", "remote", "discovery: 5s", 0, nil},
		{"a write", "/apis/good.example.com/v1/widgets", "POST", "remote", "request: 1m0s", 0, []string{`"create"`}},
		{"backend refuses", "/apis/bad.example.com/v1/widgets", "", "refused", "", 503, []string{"bad.example.com is unavailable: FailedDiscoveryCheck", "the backend refuses system:kube-aggregator"}},
		{"no service", "/apis/lost.example.com/v1/widgets", "", "refused", "", 503, []string{"service x/nobody does not exist", "is not present"}},
		{"by URL", "/apis/urls.example.com/v1/widgets", "", "refused", "", 503, []string{"claims it for https://10.0.0.9:8443,https://b.example.com:443", `"serverName": "10.0.0.9,b.example.com"`, "no probe of it has ended yet"}},
		{"by a bad URL", "/apis/path.example.com/v1/widgets", "", "refused", "", 503, []string{"claims it for no usable URL", `annotation fairlead.dev/url: \"https://a.example.com/<b>path</b>\" is not https://`, "correct the annotation fairlead.dev/url"}},
		{"maintenance", "/apis/closed.example.com/v1/widgets", "", "refused", "", 503, []string{"it is in maintenance: back <b>at nine</b>", "remove the annotation"}},
		{"nobody's", "/apis/nobody.example.com/v1/widgets", "", "refused", "", 404, []string{"no APIService claims it", "the server could not find the requested resource"}},
		{"ambiguous", "/apis/good.example.com%2fv1/widgets", "", "refused", "", 400, []string{"the path is ambiguous"}},
		{"own page", "/fairlead/status", "", "page", "", 0, []string{"Fairlead serves it itself"}},
		{"health", "/readyz", "", "health", "", 0, []string{"own readiness first"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, body := s.get(t, "/fairlead/explain?"+url.Values{"path": {tc.path}, "method": {tc.method}}.Encode())
			var got answer.Explanation
			must.Do(t, json.Unmarshal([]byte(body), &got))
			if got.Destination != tc.destination || got.Timeout != tc.timeout || got.Code != tc.code {
				t.Errorf("%s, timeout %q, code %d; want %s, %q, %d", got.Destination, got.Timeout, got.Code, tc.destination, tc.timeout, tc.code)
			}
			says(t, body, tc.want...)
		})
	}
	for _, path := range []string{"/explain", "/explain?path=apis", "/explain?path=/" + strings.Repeat("a", maxPath)} {
		if resp, _ := s.get(t, path); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%.40s: %s", path, resp.Status)
		}
	}
}

// rights authorizes the users of these tests.
func rights(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	// alice may do everything, bob may see widgets and pages, and nobody else anything.
	u := a.GetUser()
	if u.GetName() == "alice" || u.GetName() == "bob" && (a.GetResource() == "widgets" || !a.IsResourceRequest()) || slices.Contains(u.GetGroups(), "system:serviceaccounts:good") {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "no rule allows it", nil
}

// The user is a parameter, and the answer depends on that user's rights; a caller who must not
// review other users is refused.
func TestExplainAnother(t *testing.T) {
	s := newStand(t)
	const widgets, pods = "/apis/good.example.com/v1/widgets", "/apis/good.example.com/v1/gadgets"
	for _, tc := range []struct {
		path, as string
		code     int
		want     string
	}{
		{widgets, "", 0, `"authorization": "allowed"`},
		{widgets, "bob", 0, `x-remote-user: bob`},
		{pods, "bob", 403, `"authorization": "denied: gadgets.good.example.com is forbidden: User \"bob\" cannot list`},
		{"/readyz", "bob", 0, `"destination": "health"`},
		{pods, "system:serviceaccount:good:reader", 0, "x-remote-group: system:serviceaccounts:good"},
		{pods, "system:serviceaccount:bad:reader", 403, "no rule allows it"},
	} {
		_, body := s.get(t, "/fairlead/explain?"+url.Values{"path": {tc.path}, "user": {tc.as}}.Encode())
		var got answer.Explanation
		must.Do(t, json.Unmarshal([]byte(body), &got))
		if got.Code != tc.code || (tc.code == 403) != (got.Destination == "refused") || !strings.Contains(body, tc.want) {
			t.Errorf("%s by %s: code %d, want %d and %s in:\n%s", tc.path, tc.as, got.Code, tc.code, tc.want, body)
		}
	}
	bob := func() int {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, s.http.URL+"/fairlead/explain?user=jane&path="+widgets, nil))(t)
		r.Header.Set("Test-User", "bob")
		resp := must.Get(s.http.Client().Do(r))(t)
		defer resp.Body.Close()
		return resp.StatusCode
	}
	check.Same(t, http.StatusForbidden, bob(), "bob asks about jane")
	starting := must.Get(registry.New(registry.Config{Directory: s.dir}))(t)
	door, _ := newDoor(t, starting.Table)
	s.cfg.Explain = door.Explain
	check.Same(t, http.StatusForbidden, bob(), "bob asks about jane, and the table is not complete yet")
}

// Every reason of the registry has its own advice, as have the different messages of probes.
func TestDiagnose(t *testing.T) {
	for _, tc := range []struct{ reason, message, want string }{
		{registry.ReasonServiceNotFound, "", "does not exist"},
		{registry.ReasonServicePortError, "", "no usable port 443"},
		{registry.ReasonServiceAccessError, "", "cannot be used as it is"},
		{registry.ReasonEndpointsAccessError, "", "cannot be used as it is"},
		{registry.ReasonEndpointsNotFound, "", "selector"},
		{registry.ReasonMissingEndpoints, "", "pods ready"},
		{registry.ReasonInvalidCABundle, "", "caBundle"},
		{registry.ReasonProtectedGroup, "", "--protected-groups"},
		{registry.ReasonInvalidURL, "", "--allow-url-backends"},
		{registry.ReasonFailedDiscoveryCheck, "failing: UnknownAuthority: the backend's certificate", "not signed by spec.caBundle"},
		{registry.ReasonFailedDiscoveryCheck, "failing: WrongServerName: the backend's certificate", "lacks the service's name"},
		{registry.ReasonFailedDiscoveryCheck, "bad status from https://10.0.0.1:401/apis/a/v1: 401", "proxy client certificate"},
		{registry.ReasonFailedDiscoveryCheck, "bad status from https://10.0.0.1:401/apis/a/v1: 307", "redirects"},
		{registry.ReasonFailedDiscoveryCheck, "context deadline exceeded (Client.Timeout exceeded while awaiting headers)", "hangs"},
		{registry.ReasonFailedDiscoveryCheck, "dial tcp 10.0.0.1:443: i/o timeout", "drops the packets"},
		{registry.ReasonFailedDiscoveryCheck, "dial tcp 10.0.0.1:443: connect: connection refused", "nothing listens"},
		{registry.ReasonFailedDiscoveryCheck, "the external name of service/a in \"b\" is refused: localhost is a loopback name", "--allow-loopback-backends"},
		{registry.ReasonFailedDiscoveryCheck, "something new", ""},
	} {
		e := &registry.Entry{
			Backend: &registry.Backend{Namespace: "x", Service: "s", Port: 443},
			Verdict: registry.Verdict{Status: corev1.ConditionFalse, Reason: tc.reason, Message: tc.message},
		}
		cause, advice := diagnose(&proxy.Decision{Entry: e})
		if cause != tc.message || !strings.Contains(advice, tc.want) || (tc.want == "") != (advice == "") {
			t.Errorf("%s %q: cause %q, advice %q, want %q", tc.reason, tc.message, cause, advice, tc.want)
		}
	}
}

func TestTransitions(t *testing.T) {
	s := newStand(t)
	must.Do(t, os.Remove(filepath.Join(s.dir, "lost.yaml")))
	s.await(t, func(t *registry.Table) bool { return remotes(t) == 3 })
	must.Soon(t, 10*time.Second, "the transitions of all three", func() bool {
		seen := map[string]string{}
		for _, x := range s.history.newest() {
			seen[x.APIService] += x.Status + ";"
		}
		return seen["v1.lost.example.com"] == "gone;False;" && seen["v1.good.example.com"] == "True;" && seen["v1.bad.example.com"] == "False;"
	})
}

func TestHistoryIsBounded(t *testing.T) {
	var h history
	for i := range 3 * maxTransitions {
		h.add(answer.Transition{Message: fmt.Sprint(i)})
	}
	got := h.newest()
	if len(got) != maxTransitions || got[0].Message != fmt.Sprint(3*maxTransitions-1) {
		t.Errorf("%d transitions, newest %q", len(got), got[0].Message)
	}
}

// Values that others wrote stay text in the page.
func TestPage(t *testing.T) {
	s := newStand(t)
	resp, body := s.get(t, "/fairlead/?explain=%2Fapis%2Fclosed.example.com%2Fv1%2Fx%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E")
	check.Same(t, policy, resp.Header.Get("Content-Security-Policy"), "policy")
	for _, bad := range []string{"<b>at nine", "<script>alert", "http://", "https://cdn", " style=", "onclick"} {
		if strings.Contains(body, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	says(t, body, "back &lt;b&gt;at nine", "v1.lost.example.com", "3 of 4 APIServices of extension servers cannot be used.", `id="explanation"`, `lang="en"`)
	if _, body := s.get(t, "/apiservice/v1.bad.example.com"); !strings.Contains(body, "127.0.0.7:8443") || !strings.Contains(body, ": 403") {
		t.Errorf("the detail shows no endpoint with its error:\n%s", body)
	}
	for path, want := range map[string]int{"/fairlead/apiservice/none": 404, "/fairlead/nothing": 404, "/style.css": 200, "/fairlead/page.js": 200} {
		if resp, _ := s.get(t, path); resp.StatusCode != want {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if resp, _ := s.get(t, "/fairlead"); resp.Request.URL.Path != "/fairlead/" {
		t.Errorf("/fairlead redirects to %s", resp.Request.URL)
	}
	if resp, err := s.http.Client().Post(s.http.URL+"/status", "text/plain", nil); err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v %v", resp, err)
	}
}
