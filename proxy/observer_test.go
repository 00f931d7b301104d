package proxy

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/audit"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// auditLog makes an audit log. read waits for n events, closes the log, and returns them in the
// order of their requests: a request's last event may follow its answer, and so the next request's
// first event.
func auditLog(t *testing.T, rules string, local bool) (l *audit.Log, read func(n int) []auditv1.Event) {
	t.Helper()
	p := must.Get(policy.LoadPolicyFromBytes([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n" + rules)))(t)
	out := make(lines, 64)
	l = must.Get(audit.New(audit.Config{Policy: policy.NewPolicyRuleEvaluator(p), Writer: out, Local: local}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	loop.Go(func() { _ = l.Run(ctx) })
	t.Cleanup(cancel)
	return l, func(n int) []auditv1.Event {
		patience := time.After(10 * time.Second)
		var written []string
		for len(written) < n {
			select {
			case line := <-out:
				written = append(written, line)
			case <-patience:
				n = 0
			}
		}
		cancel()
		loop.Wait()
		close(out)
		for line := range out {
			written = append(written, line)
		}
		var events []auditv1.Event
		for _, line := range written {
			if strings.Contains(line, "token-of-") {
				t.Errorf("the log holds a token: %s", line)
			}
			var ev auditv1.Event
			must.Do(t, json.Unmarshal([]byte(line), &ev))
			events = append(events, ev)
		}
		slices.SortStableFunc(events, func(a, b auditv1.Event) int {
			return a.RequestReceivedTimestamp.Compare(b.RequestReceivedTimestamp.Time)
		})
		return events
	}
}

// inShort formats an event briefly.
func inShort(ev *auditv1.Event) string {
	words := []string{string(ev.Stage), string(ev.Level), ev.Verb, ev.User.Username}
	if ev.ImpersonatedUser != nil {
		words = append(words, "as "+ev.ImpersonatedUser.Username)
	}
	if ev.ResponseStatus != nil {
		words = append(words, strconv.Itoa(int(ev.ResponseStatus.Code)))
	}
	if d := ev.Annotations["authorization.k8s.io/decision"]; d != "" {
		words = append(words, d)
	}
	return strings.Join(words, " ")
}

// Every request is recorded by the server that answers it, over either protocol, as kube-apiserver
// would record it.
func TestAudit(t *testing.T) {
	t.Parallel() // it waits most of the time
	everyWay(t, func(t *testing.T, proto string) {
		log, read := auditLog(t, "rules: [{level: None, nonResourceURLs: [/readyz]}, {level: Metadata}]", false)
		w := newWorld(t, worldConfig{audit: log, remote: func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "ok") }})
		c := w.httpClient(t, proto, nil)
		ask := func(method, target, token string, more ...string) {
			r := w.request(t, method, target, nil)
			if token != "" {
				r.Header.Set("Authorization", "Bearer token-of-"+token)
			}
			for _, as := range more {
				r.Header.Set("Impersonate-User", as)
			}
			r.Header.Set("Audit-Id", "id-of-"+token)
			w.do(t, c, r)
		}
		ask("GET", remoteGV+"/widgets?access_token=token-of-eve", "bob")
		ask("GET", remoteGV+"/namespaces/ns/widgets/one?watch=1", "nobody")
		ask("DELETE", remoteGV+"/widgets/one", "")
		ask("POST", remoteGV+"/widgets", "boss", "jane")
		ask("POST", remoteGV+"/widgets", "bob", "jane")
		ask("GET", "/api/v1/pods", "bob")
		ask("GET", "/readyz", "bob")
		ask("GET", remoteGV+"/widgets?watch=1", "bob")
		w.local.Close()
		ask("GET", "/api/v1/pods", "bob")
		w.proxy.givenUp.charge(account{Source: bound.Source{User: "bob"}}, 10*givenUpBurst)
		ask("GET", remoteGV+"/widgets", "bob")
		var got []string
		for _, ev := range read(15) {
			got = append(got, inShort(&ev))
			if ev.RequestURI == "" || ev.UserAgent != "Go-http-client/2.0" && ev.UserAgent != "Go-http-client/1.1" || !slices.Equal(ev.SourceIPs, []string{"127.0.0.1"}) {
				t.Errorf("%+v", ev)
			}
			if strings.Contains(ev.RequestURI, "access_token") && ev.RequestURI != remoteGV+"/widgets?access_token=MASKED" {
				t.Errorf("requestURI %q", ev.RequestURI)
			}
			if ev.User.Username != "" && string(ev.AuditID) != "id-of-"+ev.User.Username {
				t.Errorf("%s has the Audit-ID %q", got[len(got)-1], ev.AuditID)
			}
			if remote := strings.HasPrefix(ev.RequestURI, remoteGV); remote != (ev.Annotations["fairlead.dev/apiservice"] == "v1.remote.example.com") {
				t.Errorf("%s: annotations %v", ev.RequestURI, ev.Annotations)
			}
		}
		want := []string{
			"RequestReceived Metadata list bob", "ResponseComplete Metadata list bob 200 allow",
			"RequestReceived Metadata get nobody", "ResponseComplete Metadata get nobody 403 forbid",
			"ResponseStarted Metadata delete  401",
			"RequestReceived Metadata create boss", "ResponseComplete Metadata create boss as jane 200 allow",
			"RequestReceived Metadata create bob", "ResponseComplete Metadata create bob 403",
			"RequestReceived Metadata watch bob", "ResponseStarted Metadata watch bob 200 allow", "ResponseComplete Metadata watch bob 200 allow",
			"ResponseComplete Metadata list  503",
			"RequestReceived Metadata list bob", "ResponseComplete Metadata list bob 429 allow",
		}
		check.Same(t, want, got, "record")
	})
}

// The authorizer's decision is recorded also if it is not cached any more when the request ends, as
// that of every long watch.
func TestAuditOfAnExpiredVerdict(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		log, read := auditLog(t, "omitStages: [RequestReceived]\nrules: [{level: Metadata}]", false)
		w := newWorld(t, worldConfig{audit: log})
		w.proxy.cfg.Authz = must.Get(authz.New(authz.Config{AllowTTL: -1, Review: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "because", nil
		}}))(t)
		w.get(t, proto, remoteGV+"/widgets")
		ev := read(1)[0]
		check.Same(t, "ResponseComplete Metadata list bob 200 allow because", inShort(&ev)+" "+ev.Annotations["authorization.k8s.io/reason"], "record")
	})
}

// Requests to the local apiserver are recorded here if Local is set, without the users of tokens,
// and if a caller wants to be somebody else and only one of the two is sent.
func TestAuditLocal(t *testing.T) {
	for impersonate, want := range map[bool][]string{
		false: {"ResponseComplete Metadata list  200", "ResponseComplete Metadata list alice 200", "ResponseComplete Metadata list boss 200"},
		true:  {"ResponseComplete Metadata list alice 403", "ResponseComplete Metadata list boss as jane 200"},
	} {
		everyWay(t, func(t *testing.T, proto string) {
			log, read := auditLog(t, "omitStages: [RequestReceived]\nrules: [{level: Metadata}]", !impersonate)
			w := newWorld(t, worldConfig{impersonate: impersonate, audit: log})
			for _, name := range []string{"alice", "boss"} {
				r := w.request(t, "GET", "/api/v1/pods", nil)
				if impersonate {
					r.Header.Set("Impersonate-User", "jane")
				}
				w.do(t, w.httpClient(t, proto, w.client.Issue(pki.Leaf{CommonName: name})), r)
			}
			w.get(t, proto, "/api/v1/pods")
			var got []string
			for _, ev := range read(len(want)) {
				got = append(got, inShort(&ev))
				if id := string(ev.AuditID); !uuid4.MatchString(id) || ev.User.Username == "" && id != w.local.last(t).header.Get("Audit-Id") {
					t.Errorf("Audit-ID %q, the local apiserver has %q", id, w.local.last(t).header.Get("Audit-Id"))
				}
			}
			slices.Sort(got)
			check.Same(t, want, got, "record")
		})
	}
}

// Bodies of extension servers are recorded if the policy says so, which kube-apiserver cannot do
// (kubernetes/kubernetes#103889), and those that Fairlead answers itself, also with impersonation.
// They are forwarded unchanged.
func TestAuditBodies(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		log, read := auditLog(t, "omitStages: [RequestReceived]\nrules: [{level: RequestResponse, resources: [{group: remote.example.com}, {group: apiregistration.k8s.io}]}, {level: Metadata}]", true)
		echo := func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, `{"kind":"Widget"}`)
		}
		w := newWorld(t, worldConfig{audit: log, remote: echo, also: func(in *registry.Input) { in.Options.Directory = true }})
		w.proxy.cfg.Pages = http.HandlerFunc(echo)
		const pages = "/apis/apiregistration.k8s.io/v1/apiservices"
		// The first one learns which protocol the backend speaks.
		for _, line := range []string{remoteGV + "/widgets", remoteGV + "/widgets", pages, pages + " jane", "/api/v1/pods"} {
			target, as, _ := strings.Cut(line, " ")
			r := w.as(t, "boss", "POST", target, strings.NewReader(`{"spec":1}`))
			r.Header.Set("Content-Type", "application/json")
			if as != "" {
				r.Header.Set("Impersonate-User", as)
			}
			w.do(t, w.httpClient(t, proto, nil), r).want(t, 200, line)
		}
		check.Same(t, `{"spec":1}`, w.remote.last(t).body, "the backend's body")
		var got []string
		for _, ev := range read(5) {
			bodies := string(ev.Level)
			if ev.RequestObject != nil {
				bodies += " " + string(ev.RequestObject.Raw)
			}
			if ev.ResponseObject != nil {
				bodies += " " + string(ev.ResponseObject.Raw)
			}
			got = append(got, bodies)
		}
		const all = `RequestResponse {"spec":1} {"kind":"Widget"}`
		check.Same(t, []string{all, all, all, all, "Metadata"}, got, "recorded")
	})
}
