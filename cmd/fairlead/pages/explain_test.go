package pages

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Every reason of the registry has its own advice, as have the different messages of probes.
func TestDiagnose(t *testing.T) {
	for _, tc := range []struct{ reason, message, want string }{
		{registry.ReasonServiceNotFound, "", "does not exist"},
		{registry.ReasonServicePortError, `service/a in "b" is not listening on port 443`, "no such port"},
		{registry.ReasonServiceAccessError, `service/a in "b" is Fairlead's own: annotation fairlead.dev/service must name the extension server's`, "docs/behind.md"},
		{registry.ReasonEndpointsNotFound, `cannot find endpointslices for service/a in "b"`, "a selector"},
		{registry.ReasonMissingEndpoints, `endpointslices for service/a in "b" have no addresses with port name ""`, "no pod"}, {registry.ReasonMissingEndpoints, `ready endpointslices have no port with name ""`, "no port"},
		{registry.ReasonInvalidCABundle, "", "caBundle"}, {registry.ReasonInvalidCABundle, "reading the CA bundle from ConfigMap a/b: the local apiserver forbids to read it", "system:fairlead-ca-from"},
		{registry.ReasonProtectedGroup, `group apps is protected: service/a in "b" may not serve it`, "--protected-groups"},
		{registry.ReasonInvalidURL, "annotation fairlead.dev/url has only addresses that are refused: 127.0.0.1 is a loopback address", "--allow-url-backends"},
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
		cause, advice := diagnose(&proxy.Decision{Entry: e}, &answer.APIService{Verdict: e.Verdict})
		check.Same(t, tc.message, cause, "%s: cause", tc.reason)
		check.Has(t, advice, tc.want)
		check.Same(t, tc.want == "", advice == "", "%s %q: no advice", tc.reason, tc.message)
	}
	_, advice := diagnoseEntry(&registry.Entry{Problems: []string{"annotation x", "endpoint refused: 127.0.0.1 is a loopback address"}})
	check.Has(t, advice, "EndpointSlices")
}

// Names that APIServices choose never get into commands that operators copy into a shell.
func TestCommandsAreNotWritten(t *testing.T) {
	for _, name := range []string{"x; rm -rf /", "$(id)", "x\ny", "--kubeconfig=x", "`id`", "X"} {
		for _, e := range []*registry.Entry{
			{Name: name, Backend: &registry.Backend{Namespace: "x", Service: "y"}}, {Name: "v1.x", Backend: &registry.Backend{Namespace: name, Service: "y"}},
			{Name: "v1.x", Backend: &registry.Backend{Namespace: "x", Service: name}},
		} {
			check.Same(t, "", command(e), "the command for %q", name)
		}
	}
}

func TestBrief(t *testing.T) {
	for message, want := range map[string]string{
		`failing or missing response from https://a:1/apis/x/v1: bad status from https://a:1/apis/x/v1: 403`:      `bad status from https://a:1/apis/x/v1: 403`,
		`failing or missing response from https://a:1/apis/x/v1: Get "https://a:1/apis/x/v1": connection refused`: `connection refused`,
		`1 of 2 endpoints are unhealthy and get no requests: failing or missing response from https://a: EOF`:     `1 of 2 endpoints are unhealthy and get no requests: EOF`,
		`service "x" in "y" is not present`: `service "x" in "y" is not present`,
	} {
		check.Same(t, want, Brief(message), "%s", message)
	}
}

// What is explained of a decision. A request for the local apiserver is forwarded even if none is healthy, and the
// explanation says why it fails, and at which server. A user who is denied learns the authorizer's reason, and when a
// grant works; one whose review failed learns why it did. A request that fails by one of our own needs has that as its
// cause, with what to do; one that a backend or a role fails does not.
func TestExplanation(t *testing.T) {
	const (
		grant = "grant it by a Role or ClusterRole and a binding, which takes effect within 10 s (--authorization-webhook-cache-unauthorized-ttl); kubectl auth can-i asks the same question"
		reach = "Fairlead must reach the local apiserver, and may create subjectaccessreviews there (ClusterRole system:fairlead)"
		right = "rights: Fairlead may not create subjectaccessreviews; grant it"
	)
	alice := &user.DefaultInfo{Name: "alice"}
	healthy := registry.Endpoint{Address: "10.0.0.1:6443", Health: registry.Healthy}
	dead := registry.Endpoint{Address: "10.0.0.2:6443", Health: registry.Unhealthy, Message: "dial tcp: connection refused"}
	rights := answer.Check{Name: "rights", Status: "failed", Message: "Fairlead may not create subjectaccessreviews", Users: "Users get 503", Advice: "grant it"}
	disk := answer.Check{Name: "audit-log", Status: "failed", Message: "no space left"}
	expired := answer.Check{Name: "certificates", Status: "failed", Message: "proxy-client has expired", Users: "Users with certificates are refused", Advice: "renew it"}
	local, remote := &registry.Entry{Name: "v1."}, &registry.Entry{Name: "v1.x", Backend: &registry.Backend{}, Verdict: registry.Verdict{Status: corev1.ConditionFalse, Reason: "Lost", Message: "lost"}}
	for _, e := range []*registry.Entry{local, remote} {
		e.Object = &apiregistrationv1.APIService{}
	}
	unavailable := apierrors.NewServiceUnavailable("not now")
	failed := fmt.Errorf("%w: %w", apierrors.NewServiceUnavailable("the request could not be authorized"), errors.New("connection refused"))
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("RBAC: clusterrole \"x\" not found"))
	document, forwarded := proxy.Decision{Action: proxy.ToDocument, User: alice}, proxy.Decision{Action: proxy.ToLocal, User: alice, Entry: local}
	impersonated := forwarded
	impersonated.Pool = authn.PoolImpersonate
	for _, tt := range []struct {
		name    string
		servers []registry.Endpoint
		checks  []answer.Check
		d       proxy.Decision
		denied  error
		want    string // destination, code, cause, advice and the servers' health
	}{
		{"a healthy server", []registry.Endpoint{healthy}, nil, forwarded, nil, "local 0: ;  healthy"},
		{"one of two", []registry.Endpoint{healthy, dead}, nil, forwarded, nil, "local 0: 1 of 2 local apiservers are unhealthy and get no requests: dial tcp: connection refused; nothing listens at the endpoint's address, or a firewall rejects: is the port right, is the process up? healthy unhealthy"},
		{"no server", []registry.Endpoint{dead, dead}, nil, forwarded, nil, "local 503: no local apiserver is healthy: dial tcp: connection refused; nothing listens at the endpoint's address, or a firewall rejects: is the port right, is the process up? unhealthy unhealthy"},
		{"not probed yet", []registry.Endpoint{{Address: "10.0.0.1:6443"}}, nil, forwarded, nil, "local 0: ;  unprobed"},
		{"denied, while a check fails", nil, []answer.Check{rights}, document, forbidden, `refused 403: pods is forbidden: RBAC: clusterrole "x" not found; ` + grant},
		{"a review failed", nil, nil, document, failed, "refused 503: the request could not be authorized: connection refused; " + reach},
		{"no review", nil, []answer.Check{disk, rights}, document, unavailable, "refused 503: " + right},
		{"no review, and no check fails", nil, nil, document, unavailable, "refused 503: not now; " + reach},
		{"no review, and users notice no check", nil, []answer.Check{disk}, document, unavailable, "refused 503: not now; " + reach},
		{"refused", nil, []answer.Check{rights}, proxy.Decision{Err: unavailable, Entry: local}, nil, "refused 503: " + right},
		{"refused for what it asks, while a check fails", nil, []answer.Check{rights}, proxy.Decision{Err: apierrors.NewBadRequest("an odd path")}, nil, "refused 400: an odd path; "},
		{"a backend", nil, []answer.Check{rights}, proxy.Decision{Err: unavailable, Entry: remote}, nil, "refused 503: lost; "},
		{"forwarded", nil, []answer.Check{rights}, forwarded, nil, "local 0: ; "},
		{"impersonated", nil, []answer.Check{rights}, impersonated, nil, "local 0: " + right},
		{"forwarded as nobody that the cluster trusts", nil, []answer.Check{{Name: "authentication-configmap", Status: "failed", Message: "unknown authority", Users: "Users get 401", Advice: "have it signed"}}, forwarded, nil, "local 0: authentication-configmap: unknown authority; have it signed"},
		{"forwarded with an expired certificate", nil, []answer.Check{expired}, forwarded, nil, "local 0: certificates: proxy-client has expired; renew it"},
	} {
		s := newStand(t)
		s.cfg.LocalServers = func() []registry.Endpoint { return tt.servers }
		s.cfg.Process = func() *answer.Status { return &answer.Status{Checks: tt.checks} }
		x := s.explanation(http.MethodGet, "/apis", "", alice, tt.d, tt.denied)
		got := fmt.Sprintf("%s %d: %s; %s", x.Destination, x.Code, x.Cause, x.Advice)
		if x.APIService != nil {
			for _, e := range x.APIService.Endpoints {
				got += " " + e.Health
			}
		}
		check.Same(t, tt.want, got, "%s", tt.name)
		if tt.denied != nil {
			check.Has(t, x.Authorization, tt.denied.Error())
		}
	}
}

// The page shows a check that fails, what users notice, and what to run.
func TestPageShowsChecks(t *testing.T) {
	s := newStand(t)
	s.cfg.Process = func() *answer.Status {
		return &answer.Status{Checks: []answer.Check{{Name: "table", Status: "passed"}, {Name: "rights", Status: "failed", Message: "may not <b>", Users: "Users get 503", Advice: "grant it", Command: "kubectl describe clusterrole x"}}}
	}
	text := rendered(&view{Status: s.status()}, "overview.html").String()
	check.Has(t, text, `<h1 class="bad">Users get 503.</h1>`, "Users get 503. rights: may not &lt;b&gt;", "grant it", `<code class="copy">kubectl describe clusterrole x</code>`)
	check.Same(t, false, strings.Contains(text, "table:"), "the summary has a check that passes: %s", text)
	late := &answer.Status{Complete: true, Checks: []answer.Check{{Name: "clock", Status: "failed", Message: "late"}}}
	check.Has(t, rendered(&view{Status: late}, "overview.html").String(), `<h1 class="bad">Users are served, but clock: late.</h1>`, "<title>Fairlead: Users are served, but clock: late</title>")
}

// Who has filled a limit is said to readers of the status, and to the user who would get 429.
func TestOverload(t *testing.T) {
	s := newStand(t)
	s.write(t, "good", `fairlead.dev/max-inflight: "20"`)
	must.Soon(t, 10*time.Second, "the limit", func() bool {
		_, body := s.get(t, "/status")
		return strings.Contains(body, `"maxInFlight": 20`)
	})
	for _, e := range s.registry.Table().Entries() {
		for range 19 + 7 {
			if e.Name == "v1.good.example.com" {
				_, _ = s.cfg.Backends.Upstream(e).Acquire(bound.Source{User: "jane"}, false)
			}
		}
	}
	const cause = `limit inflight: 19 of 20 places are held, at least 14 by user \"jane\"; 7 requests got 429 in the last two minutes, 7 of them from user \"jane\"`
	_, body := s.get(t, "/status")
	check.Has(t, body, `"cause": "`+cause, `"name": "inflight"`, "raise fairlead.dev/max-inflight", "FairleadSaturated.md")
	_, body = s.get(t, "/")
	check.Has(t, body, "19 of 20 places are held, at least 14 by user")
	for name, code := range map[string]int{"jane": 429, "alice": 0} {
		x := s.explain(t.Context(), http.MethodGet, "/apis/good.example.com/v1/widgets", "", "", &user.DefaultInfo{Name: name, Groups: []string{user.SystemPrivilegedGroup}})
		check.Same(t, code, x.Code, "the code for %s", name)
		check.Has(t, x.Cause, "at least 14 by user")
		check.Has(t, x.Advice, "raise fairlead.dev/max-inflight")
	}
}

// URLs of different servers are reported, with what each serves.
func TestDifferentServers(t *testing.T) {
	at := func(serves ...string) *answer.APIService {
		a := &answer.APIService{}
		for i, s := range serves {
			a.Endpoints = append(a.Endpoints, answer.Endpoint{Address: fmt.Sprintf("10.0.0.%d:443", i), Health: "healthy", Serves: s})
		}
		help(a, &registry.Entry{Backend: &registry.Backend{}, Verdict: registry.Verdict{Status: corev1.ConditionTrue}})
		return a
	}
	for _, same := range [][]string{nil, {"2"}, {"2", "2"}, {"", "2"}, {"", ""}} {
		check.Same(t, "", at(same...).Cause, "cause of %q", same)
	}
	a := at("2 resources (ab)", "", "3 resources (cd)")
	check.Same(t, "its URLs lead to different servers, so that some requests get 404: 10.0.0.0:443 has 2 resources (ab), 10.0.0.2:443 has 3 resources (cd)", a.Cause, "cause")
	check.Has(t, a.Advice, "replicas of one server only")
}

// A backend that passes its probes and fails its requests is not called well, whatever else is wrong with it.
func TestFailingRequests(t *testing.T) {
	e := &registry.Entry{Name: "v1.x", Backend: &registry.Backend{Namespace: "n", Service: "s"}, Verdict: registry.Verdict{Status: corev1.ConditionTrue}}
	for also, problems := range map[string][]string{"": nil, "; annotation x": {"annotation x"}} {
		a := &answer.APIService{Group: "x", Version: "v1", Verdict: e.Verdict, Traffic: &answer.Traffic{Rate: 1, Errors: 1}}
		e.Problems = problems
		help(a, e)
		check.Same(t, "100% of its requests in the last minute failed (1.0/s)"+also, a.Cause, "cause")
		check.Has(t, a.Advice+a.Command+a.Runbook, "log of the backend", "/fairlead/tap?path=/apis/", "FairleadBackendErrors.md")
	}
	// A limit is said, too, if it is full because an endpoint is dead.
	e.Problems, e.Endpoints = nil, []registry.Endpoint{{Health: registry.Unhealthy, Message: "EOF"}}
	a := &answer.APIService{Group: "x", Version: "v1", Verdict: e.Verdict, Endpoints: []answer.Endpoint{{Health: "unhealthy"}}, Limits: []bound.Limit{{Name: "inflight", Refused: 7}}}
	help(a, e)
	const full = "limit inflight; 7 requests got 429 in the last two minutes; 1 of 1 endpoints are unhealthy and get no requests: EOF"
	check.Same(t, full, a.Cause, "cause of a full one")
	cause, do := diagnose(&proxy.Decision{Entry: e}, a)
	check.Same(t, full+a.Advice, cause+do, "what explain says of it")
	check.Has(t, a.Advice, "'/fairlead/tap?path=/apis/x/v1/&seconds=1'")
}
