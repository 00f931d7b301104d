package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func sample() *answer.Status {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	return &answer.Status{
		Time: now, Complete: true, Generation: 4,
		APIServices: []answer.APIService{
			{
				Name: "v1beta1.metrics.k8s.io", Group: "metrics.k8s.io", Version: "v1beta1", Kind: "remote", Service: "kube-system/metrics-server:443", ServerName: "metrics-server.kube-system.svc",
				GroupPriority: 100, VersionPriority: 10, Verdict: answer.Verdict{Status: "True", Reason: "Passed", Since: now.Add(-5 * time.Hour)}, InFlight: 3, LongRunning: 1, Traffic: &answer.Traffic{Rate: 2.5, P99: .042},
				Endpoints: []answer.Endpoint{{Address: "10.0.0.1:443", Health: "healthy"}, {Address: "10.0.0.2:443", Health: "unhealthy", Error: "refused"}},
				Trust:     &trust.Status{Leaves: []trust.Certificate{{NotAfter: now.Add(50 * 24 * time.Hour)}}, CAs: []trust.Certificate{{NotAfter: now.Add(400 * 24 * time.Hour)}}},
			},
			{Name: "v1.apps", Group: "apps", Version: "v1", Kind: "local", Verdict: answer.Verdict{Status: "True", Reason: "Local"}},
		},
		LocalServers: []answer.Endpoint{{Address: "10.0.0.9:6443", Health: "healthy"}},
	}
}

func broken() *answer.Status {
	s := sample()
	s.APIServices[0].Verdict = answer.Verdict{Status: "False", Reason: "FailedDiscoveryCheck", Message: "no \x1b[2Janswer", Since: s.Time.Add(-30 * time.Second)}
	s.APIServices[0].Problems = []string{"annotation fairlead.dev/x: unknown"}
	s.LocalServers[0].Health, s.LocalServers[0].Error = "unhealthy", "dial"
	return s
}

const table1 = `NAME                     SERVICE                          AVAILABLE   REASON   FOR   ENDPOINTS   IN-FLIGHT   P99    CERT
v1beta1.metrics.k8s.io   kube-system/metrics-server:443   True        Passed   5h    1/2         3           42ms   50d
1 Local APIServices are not shown (--all).
`

func TestStatus(t *testing.T) {
	f := newFront(t, sample())
	out := must.Get(f.run(t, "status", "--as", "bob"))(t)
	check.Same(t, table1, out, "table")
	check.Same(t, "bob", f.as, "asked as")
}

func TestStatusUnavailable(t *testing.T) {
	out, err := newFront(t, broken()).run(t, "status", "-o", "wide", "--all")
	if !errors.Is(err, errUnavailable) {
		t.Errorf("error %v, want errUnavailable", err)
	}
	says(t, out, "False       FailedDiscoveryCheck   30s", "2.5/s", "100/10", "metrics-server.kube-system.svc", "v1.apps", "Local", "annotation fairlead.dev/x", "local apiserver 10.0.0.9:6443 is unhealthy: dial")
	if strings.Contains(out, "\x1b") {
		t.Errorf("a backend's control characters reach the terminal: %q", out)
	}
}

// The table refers to explain only if something is broken.
func TestStatusLeadsToExplain(t *testing.T) {
	out, _ := newFront(t, broken()).run(t, "status")
	if want := " explain v1beta1.metrics.k8s.io\n"; !strings.Contains(out, "\nCause and advice: ") || !strings.HasSuffix(out, want) {
		t.Errorf("want %q at the end of:\n%s", want, out)
	}
	if out, err := newFront(t, broken()).run(t, "status", "-o", "json"); !errors.Is(err, errUnavailable) || strings.Contains(out, "Cause and advice") {
		t.Errorf("in JSON: %v\n%s", err, out)
	}
}

func TestExplainTrust(t *testing.T) {
	for _, tt := range []struct{ fault, want string }{{"", "Trusted by:    inline\n"}, {"no certificate", "Trusted by:    inline no certificate\n"}} {
		s := sample()
		s.APIServices[0].Trust.Source, s.APIServices[0].Trust.Fault = "inline", tt.fault
		f := newFront(t, s)
		must.Get(f.run(t, "status"))(t)
		if out, err := f.run(t, "explain", "/apis/x/v1/y"); err != nil || !strings.Contains(out, tt.want) {
			t.Errorf("%v, want %q in:\n%s", err, tt.want, out)
		}
	}
}

func TestStatusForms(t *testing.T) {
	for form, want := range map[string]string{
		"json": `"generation": 4`, "yaml": "apiVersion: fairlead.dev/v1\n", "jsonpath={.kind} {.apiServices[*].name}": "Status v1beta1.metrics.k8s.io v1.apps",
		"go-template={{len .apiServices}}": "2",
	} {
		out, err := newFront(t, sample()).run(t, "status", "-o", form)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("-o %s: %v\n%s", form, err, out)
		}
	}
}

// A watch prints the table once, then changed rows; its end by the server is an error.
func TestStatusWatch(t *testing.T) {
	out, err := newFront(t, sample(), sample(), broken()).run(t, "status", "-w")
	if err == nil || !strings.Contains(err.Error(), "the server has ended them") {
		t.Errorf("error %v", err)
	}
	check.Same(t, 1, strings.Count(out, "NAME "), "heads in %s", out)
	check.Same(t, 2, strings.Count(out, "v1beta1.metrics.k8s.io "), "rows, the first and the changed one, in %s", out)
}

// A watch shows that an APIService was deleted, and that it is back.
func TestStatusWatchDeleted(t *testing.T) {
	without := sample()
	without.APIServices = without.APIServices[1:]
	out, _ := newFront(t, sample(), without, without, sample()).run(t, "status", "-w")
	const row = "v1beta1.metrics.k8s.io   kube-system/metrics-server:443   True        Passed   5h    1/2         3           42ms   50d\n"
	want := strings.SplitAfter(table1, "\n")[0] + row + "v1beta1.metrics.k8s.io   -   Deleted\n"
	check.Same(t, want+strings.Join(strings.Fields(row), "   ")+"\n", out, "the table, a deletion and a new row")
}

func TestMistakes(t *testing.T) {
	f := newFront(t, sample())
	for _, args := range [][]string{{"status", "-o", "xml"}, {"status", "-w", "-o", "json"}, {"explain"}, {"explain", "a", "b"}, {"explain", "/x", "-o", "table"}, {"explain", "/x", "--as", "jane", "--as-user-extra", "a=b"}} {
		if _, err := f.run(t, args...); !cli.IsUsage(err) {
			t.Errorf("%v: %v, want a usage error", args, err)
		}
	}
}

func TestServerErrors(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		code       int
		want       string
	}{
		{"not Fairlead", "404 page not found", 404, "is it Fairlead, or kube-apiserver itself?"},
		{"a Status", `{"kind":"Status","message":"forbidden: User \"bob\""}`, 403, `403 Forbidden: forbidden: User "bob"`},
		{"text", "out of order", 500, "500 Internal Server Error: out of order"},
		{"not JSON", "<html>", 200, "reading /fairlead/status: invalid character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tc.code)
				_, _ = io.WriteString(w, tc.body)
			}))
			defer s.Close()
			f := &front{Server: s, kubeconfig: kubeconfig(t, s)}
			if _, err := f.run(t, "status"); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestExplain(t *testing.T) {
	for _, tc := range []struct {
		name, subject, path string
		args                []string
		crd                 string
		refused             bool
		want                []string
	}{
		{"path", "/apis/x/v1/y?watch=true", "/apis/x/v1/y?watch=true", nil, "", false, []string{"Destination:   forwarded to kube-system/metrics-server:443\nWhy:           one\n               two\n", "x-remote-user: alice", "Endpoint:      10.0.0.1:443 healthy"}},
		{"method", "/apis/x/v1/y", "/apis/x/v1/y", []string{"--method", "POST"}, "", false, []string{"POST /apis/x/v1/y"}},
		{"APIService", "v1beta1.metrics.k8s.io", "/apis/metrics.k8s.io/v1beta1", nil, "", false, nil},
		{"resource of a group", "nodes.metrics.k8s.io", "/apis/metrics.k8s.io/v1beta1/nodes", nil, "", false, nil},
		{"resource without a namespace", "nodes.metrics.k8s.io", "/apis/metrics.k8s.io/v1beta1/nodes", []string{"-n", "default"}, "", false, nil},
		{"core resource in a namespace", "pods", "/api/v1/namespaces/default/pods", []string{"-n", "default"}, "", false, nil},
		{"another's", "/apis/x/v1/y", "/apis/x/v1/y", []string{"--as", "jane", "--as-group", "team"}, "", true, []string{"Authorization: denied: jane of [team]"}},
		{"refused", "/apis/dead/v1", "/apis/dead/v1", nil, "", true, []string{"refused: 503 unavailable", "Cause:         the  [31mcause", "Advice:        look there"}},
		{"shadowed CRD", "/apis/metrics.k8s.io/v1beta1/nodes", "/apis/metrics.k8s.io/v1beta1/nodes", nil,
			`{"metadata":{"name":"nodes.metrics.k8s.io"},"spec":{"group":"metrics.k8s.io","versions":[{"name":"v1beta1","served":true}]}}`, false,
			[]string{"CustomResourceDefinition nodes.metrics.k8s.io serves metrics.k8s.io/v1beta1 too"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFront(t, sample())
			f.last, f.crd = sample(), tc.crd
			out, err := f.run(t, append([]string{"explain", tc.subject}, tc.args...)...)
			if tc.refused != errors.Is(err, errUnavailable) || !tc.refused && err != nil {
				t.Fatalf("error %v", err)
			}
			check.Same(t, []string{tc.path}, f.explained, "paths")
			says(t, out, tc.want...)
		})
	}
	if _, err := newFront(t, sample()).run(t, "explain", "no-such-thing"); err == nil || !strings.Contains(err.Error(), "neither a path nor an APIService nor a resource") {
		t.Errorf("error %v", err)
	}
}

// The cause is not repeated.
func TestCauseOnce(t *testing.T) {
	const message = `failing or missing response from https://10.0.0.1:443/apis/x/v1: Get "https://10.0.0.1:443/apis/x/v1": connection refused`
	x := &answer.Explanation{Destination: "refused", Code: 503, Message: "unavailable", Cause: "connection refused", APIService: &answer.APIService{
		Name: "v1.x", Verdict: answer.Verdict{Status: "False", Reason: "FailedDiscoveryCheck", Message: message},
		Endpoints: []answer.Endpoint{{Address: "10.0.0.1:443", Health: "unhealthy", Error: message}, {Address: "10.0.0.2:443", Health: "unhealthy", Error: "another"}},
	}}
	out := (&client{}).describe(x)
	says(t, out, "Verdict:       False FailedDiscoveryCheck\n", "Endpoint:      10.0.0.1:443 unhealthy\n", "Endpoint:      10.0.0.2:443 unhealthy: another\n", "Cause:         connection refused\n")
	if n := strings.Count(out, "refused"); n != 2 { // in the outcome and in the cause
		t.Errorf("%d times:\n%s", n, out)
	}
}

// The API's validation of APIServices leaves spec.service.name and its namespace free.
func TestExplainControlsNoTerminal(t *testing.T) {
	const red = "\x1b[31mred"
	x := &answer.Explanation{Destination: "remote", APIService: &answer.APIService{Name: red, Service: "ns/" + red, ServerName: red + ".ns.svc"}}
	if out := (&client{}).describe(x); strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
}

func TestCompletion(t *testing.T) {
	f := newFront(t, sample())
	t.Setenv("KUBECONFIG", f.kubeconfig)
	var out bytes.Buffer
	cmd := root()
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{cobra.ShellCompRequestCmd, "explain", ""})
	if err := cmd.ExecuteContext(context.WithoutCancel(t.Context())); err != nil || !strings.Contains(out.String(), "v1beta1.metrics.k8s.io\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestColour(t *testing.T) {
	if p := paletteFor(&bytes.Buffer{}); p.on || p.bad("x") != "x" {
		t.Error("a pipe gets colours")
	}
	f := must.Get(os.CreateTemp(t.TempDir(), ""))(t)
	defer f.Close()
	if paletteFor(f).on {
		t.Error("a file gets colours")
	}
	var out bytes.Buffer
	p := palette{on: true}
	must.Do(t, table(&out, [][]cell{{{"a", p.good}, {text: "b"}}, {{text: "long"}, {text: "c"}}}))
	now, c := time.Now(), &client{palette: p}
	for left, want := range map[time.Duration]string{5 * time.Hour: "\x1b[31m4h\x1b[0m", 100 * time.Hour: "\x1b[33m4d\x1b[0m", 1000 * time.Hour: "41d"} { // as on the page
		end := c.expires(now, now.Add(left-time.Second))
		if end.paint != nil {
			end.text = end.paint(end.text)
		}
		check.Same(t, want, end.text, "a certificate that expires in %s", left)
	}
	check.Same(t, "\x1b[32ma\x1b[0m      b\nlong   c\n", out.String(), "colours must not count as width")
}
