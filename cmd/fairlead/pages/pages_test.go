package pages

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// The status has what an operator needs about each APIService: verdict, cause, command and runbook.
func TestStatus(t *testing.T) {
	s := newStand(t)
	for _, path := range []string{"/status", "/fairlead/status"} {
		resp, body := s.get(t, path)
		check.Same(t, []string{"application/json", "no-store"}, []string{resp.Header().Get("Content-Type"), resp.Header().Get("Cache-Control")}, "%s: headers", path)
		var got answer.Status
		must.Do(t, json.Unmarshal([]byte(body), &got))
		var lines []string
		for _, a := range got.APIServices {
			if a.Kind != "local" { // the registry's own
				lines = append(lines, fmt.Sprintf("%s %s %s %s %s %d/%d %v", a.Name, a.Kind, a.Service, a.Verdict.Status, a.Verdict.Reason, a.Healthy(), len(a.Endpoints), a.Available()), a.Cause, a.Command, a.Runbook)
			}
			if a.Runbook != "" {
				must.Get(os.Stat(filepath.Join("../../../docs/runbooks", strings.TrimPrefix(a.Runbook, Runbooks))))(t)
			}
		}
		check.Same(t, []string{
			"v1.lost.example.com remote x/lost-example-com:443 False ServiceNotFound 0/0 false",
			`service/lost-example-com in "x" is not present`, "kubectl -n x get services", Runbooks + "FairleadAPIServiceDown.md",
			"v1.bad.example.com remote x/bad-example-com:443 False FailedDiscoveryCheck 0/1 false",
			"bad status from https://127.0.0.7:8443/apis/bad.example.com/v1: 403", "kubectl -n x describe service bad-example-com; kubectl -n x get pods -o wide", Runbooks + "FairleadAPIServiceDown.md",
			"v1.closed.example.com remote x/closed-example-com:443 False Maintenance 1/1 false",
			"it is in maintenance: back <b>at nine</b>", "kubectl get apiservice v1.closed.example.com -o yaml", "",
			"v1.good.example.com remote x/good-example-com:443 True Passed 1/1 true",
			"the list of its resources may be outdated: discovery: too_large: 33554433 bytes", "", Runbooks + "FairleadDiscoveryStale.md",
		}, lines, "%s", path)
		if got.Version != "v1.2.3" || !got.Complete || got.Generation == 0 || len(got.LocalServers) != 1 || got.LocalTrust == nil || len(got.Certificates) != 1 || got.Ready != "" {
			t.Errorf("%s: %+v", path, got)
		}
		// How current its part of the merged documents is.
		check.Has(t, body, `"reason": "too_large"`, `"message": "33554433 bytes"`, `"resources": 3`, `"confirmed": "20`, `"v2": false`, `"v3": true`, `"release": "v1.37.2"`, `"clients": 3`, `"fresh.example.com/v1"`, `"3 TLS handshakes failed"`)
	}
	check.Has(t, rendered(&view{Status: s.status()}, "overview.html").String(), "<li>3 TLS handshakes failed</li>")
	// Empty lists are [], not null.
	bare := &Pages{cfg: s.cfg}
	bare.cfg.LocalServers = func() []registry.Endpoint { return nil }
	for _, v := range []any{s.status(), bare.status()} {
		check.Lacks(t, string(must.Get(json.Marshal(v))(t)), ":null")
	}
	s.draining.Store(true)
	check.Has(t, s.status().Ready, "shutting down")
}

// Values that others wrote stay text in the pages, which show the operator the cause, the command
// to run and the runbook of an unhealthy APIService.
func TestPage(t *testing.T) {
	s := newStand(t)
	resp, body := s.get(t, "/fairlead/?explain=%2Fapis%2Fclosed.example.com%2Fv1%2Fx%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E")
	check.Same(t, policy, resp.Header().Get("Content-Security-Policy"), "policy")
	check.Lacks(t, body, "<b>at nine", "<script>alert", "http://", "https://cdn", " style=", "onclick")
	check.Has(t, body, "back &lt;b&gt;at nine", "v1.lost.example.com", "3 of 4 APIServices of extension servers cannot be used.", `id="explanation"`, `lang="en"`, "discovery: too_large",
		"node-7 in cluster prod-1", `<code class="copy">kubectl -n x get services</code>`, "FairleadAPIServiceDown.md", `role="search"`, `<td class="n bad" data-label="Endpoints">0/0</td>`, "s ago, took 2.0ms, passed")
	check.Same(t, true, strings.Index(body, `"apiservice/v1.bad.`) <= strings.Index(body, `"apiservice/v1.good.`), "an unhealthy APIService comes before a healthy one")
	_, body = s.get(t, "/apiservice/v1.good.example.com")
	check.Has(t, body, "3 resources", "confirmed 90m ago", "33554433 bytes", "no v2, v3, confirmed 0s ago")
	must.Soon(t, 10*time.Second, "an hour in which it was unhealthy", func() bool { // history follows the table
		_, body = s.get(t, "/fairlead/apiservice/v1.bad.example.com")
		return strings.Contains(body, `<rect class="unhealthy"`)
	})
	check.Has(t, body, "127.0.0.7:8443", ": 403", `<code class="copy">kubectl -n x describe service bad-example-com;`, "FairleadAPIServiceDown.md", `class="timeline"`,
		`s ago, took 12ms, failed<span class="sub">bad status: 403</span>`)
	for path, want := range map[string]int{"/fairlead/apiservice/none": 404, "/fairlead/nothing": 404, "/style.css": 200, "/fairlead/page.js": 200, "/fairlead": 301} {
		resp, _ := s.get(t, path)
		check.Same(t, want, resp.Code, "%s", path)
		if want == 301 {
			check.Same(t, "fairlead/", resp.Header().Get("Location"), "%s", path)
		}
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/status", nil))
	check.Same(t, http.StatusMethodNotAllowed, w.Code, "POST")
}

// The explanation presents the decision of the proxy that would forward the request.
func TestExplain(t *testing.T) {
	s := newStand(t)
	s.write(t, "urls", `fairlead.dev/url: "https://b.example.com,https://10.0.0.9:8443"`)
	s.write(t, "path", `fairlead.dev/url: "https://a.example.com/<b>path</b>"`)
	s.await(t, 6, true)
	for _, tc := range []struct {
		path, method string
		want         string   // destination, timeout and code
		says         []string // in the JSON
	}{
		{"/apis/good.example.com/v1/widgets", "", "remote, request: 1m0s, 0", []string{"x-remote-user: alice", "x-remote-uid: 7", "its version 1 of 1", `"list"`, "it is forwarded to its endpoint, as good-example-com.x.svc"}},
		{"/apis/good.example.com/v1/widgets?watch=true", "", "remote, long-running: none, 0", []string{`"watch"`}},
		{"/apis/good.example.com/v1/widgets?timeout=3s", "", "remote, request: 3s, 0", nil},
		{"/apis/good.example.com/v1", "", "remote, discovery: 5s, 0", nil},
		{"/apis/good.example.com/v1/widgets", "POST", "remote, request: 1m0s, 0", []string{`"create"`}},
		{"/apis/bad.example.com/v1/widgets", "", "refused, , 503", []string{"bad.example.com is unavailable: FailedDiscoveryCheck", "the backend refuses system:kube-aggregator"}},
		{"/apis/lost.example.com/v1/widgets", "", "refused, , 503", []string{"service x/lost-example-com does not exist", "is not present"}},
		{"/apis/urls.example.com/v1/widgets", "", "refused, , 503", []string{"claims it for https://10.0.0.9:8443,https://b.example.com:443", `"serverName": "10.0.0.9,b.example.com"`, "no probe of it has ended yet"}},
		{"/apis/path.example.com/v1/widgets", "", "refused, , 503", []string{"claims it for no usable URL", `annotation fairlead.dev/url: \"https://a.example.com/<b>path</b>\" is not https://`, "correct the annotation fairlead.dev/url"}},
		{"/apis/closed.example.com/v1/widgets", "", "refused, , 503", []string{"it is in maintenance: back <b>at nine</b>", "remove the annotation"}},
		{"/apis/nobody.example.com/v1/widgets", "", "refused, , 404", []string{"no APIService claims it", "the server could not find the requested resource"}},
		{"/apis/good.example.com%2fv1/widgets", "", "refused, , 400", []string{"the path is ambiguous"}},
		{"/fairlead/status", "", "page, , 0", []string{"Fairlead serves it itself"}},
		{"/readyz", "", "health, , 0", []string{"own readiness first"}},
	} {
		got, body := s.explained(t, tc.path, url.Values{"method": {tc.method}})
		check.Same(t, tc.want, fmt.Sprintf("%s, %s, %d", got.Destination, got.Timeout, got.Code), "%s %s", tc.method, tc.path)
		check.Has(t, body, tc.says...)
	}
	for _, path := range []string{"/explain", "/explain?path=apis", "/explain?path=/" + strings.Repeat("a", maxPath)} {
		resp, body := s.get(t, path)
		check.Same(t, http.StatusBadRequest, resp.Code, "%.40s", path)
		check.Has(t, body, "shorter than 8 KiB")
	}
}

// The user is a parameter, and the answer depends on that user's rights; a caller who must not
// review other users is refused.
func TestExplainAnother(t *testing.T) {
	s := newStand(t)
	const widgets, gadgets = "/apis/good.example.com/v1/widgets", "/apis/good.example.com/v1/gadgets"
	for _, tc := range []struct {
		path, as string
		code     int
		want     string
	}{
		{widgets, "", 0, `"authorization": "allowed"`},
		{widgets, "bob", 0, `x-remote-user: bob`},
		{gadgets, "bob", 403, `"authorization": "denied: gadgets.good.example.com is forbidden: User \"bob\" cannot list`},
		{"/readyz", "bob", 0, `"destination": "health"`},
		{gadgets, "system:serviceaccount:good:reader", 0, "x-remote-group: system:serviceaccounts:good"},
		{gadgets, "system:serviceaccount:bad:reader", 403, "no rule allows it"},
	} {
		got, body := s.explained(t, tc.path, url.Values{"user": {tc.as}})
		check.Same(t, tc.code, got.Code, "%s by %s", tc.path, tc.as)
		check.Same(t, tc.code == 403, got.Destination == "refused", "%s by %s is refused", tc.path, tc.as)
		check.Has(t, body, tc.want)
	}
	resp, _ := s.get(t, "/fairlead/explain?user=jane&path="+widgets, "bob")
	check.Same(t, http.StatusForbidden, resp.Code, "bob asks about jane")
	starting := must.Get(registry.New(registry.Config{Directory: s.dir}))(t)
	cfg := s.cfg
	cfg.Proxy, _ = newDoor(t, starting)
	s.Pages = New(cfg)
	resp, _ = s.get(t, "/fairlead/explain?user=jane&path="+widgets, "bob")
	check.Same(t, http.StatusServiceUnavailable, resp.Code, "bob asks about jane, and the table is not complete yet")
}

// Changed verdicts and the end of an APIService are transitions. Their number is bounded.
func TestTransitions(t *testing.T) {
	s := newStand(t)
	until := func(lost string) {
		t.Helper()
		must.Soon(t, 10*time.Second, "the transitions of all three", func() bool {
			seen := map[string]string{}
			for _, x := range s.history.newest() {
				seen[x.APIService] += x.Status + ";"
			}
			return seen["v1.lost.example.com"] == lost && seen["v1.good.example.com"] == "True;" && seen["v1.bad.example.com"] == "False;"
		})
	}
	until("False;") // history follows the table, and may be late
	must.Do(t, os.Remove(filepath.Join(s.dir, "lost.yaml")))
	until("gone;False;")
	flap := func(services int) (got []answer.Transition) {
		for i := range 3 * maxTransitions {
			e := &registry.Entry{Name: fmt.Sprint(i % services), Verdict: registry.Verdict{Status: "False", Message: fmt.Sprint(i)}}
			s.history.changed(&registry.Entry{}, e, time.Now())
		}
		return s.history.newest()
	}
	before := len(s.history.newest())
	check.Same(t, before+maxTransitions/4, len(flap(1)), "transitions after one APIService has flapped")
	got := flap(maxTransitions)
	check.Same(t, maxTransitions, len(got), "transitions")
	check.Same(t, fmt.Sprint(3*maxTransitions-1), got[0].Message, "the newest")
}

// explained is the explanation of a request by alice, or as the query says.
func (s *stand) explained(t *testing.T, path string, query url.Values) (x answer.Explanation, body string) {
	t.Helper()
	q := url.Values{"path": {path}}
	maps.Copy(q, query)
	_, body = s.get(t, "/fairlead/explain?"+q.Encode())
	must.Do(t, json.Unmarshal([]byte(body), &x))
	return x, body
}

// get requests a page as alice, or as another user.
func (s *stand) get(t *testing.T, path string, as ...string) (*httptest.ResponseRecorder, string) {
	t.Helper()
	u := &user.DefaultInfo{Name: append(as, "alice")[0], UID: "7", Groups: []string{"people"}}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(request.WithUser(t.Context(), u), http.MethodGet, path, nil))
	return w, w.Body.String()
}
