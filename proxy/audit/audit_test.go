package audit

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

func evaluator(t *testing.T, text string) audit.PolicyRuleEvaluator {
	t.Helper()
	p := must.Get(policy.LoadPolicyFromBytes([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n" + text)))(t)
	return policy.NewPolicyRuleEvaluator(p)
}

// write runs f with a log, and returns the events written.
func write(t *testing.T, cfg Config, f func(l *Log)) []auditv1.Event {
	t.Helper()
	var out bytes.Buffer
	if cfg.Writer == nil {
		cfg.Writer = &out
	}
	l := must.Get(New(cfg))(t)
	stop := must.Run(t, l.Run)
	f(l)
	stop()
	var events []auditv1.Event
	for line := range strings.Lines(out.String()) {
		var ev auditv1.Event
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		events = append(events, ev)
	}
	return events
}

func TestNewRefuses(t *testing.T) {
	rules := evaluator(t, "rules: [{level: Metadata}]")
	for name, cfg := range map[string]Config{"no policy": {Writer: io.Discard}, "no writer": {Policy: rules}, "a format": {Policy: rules, Writer: io.Discard, Format: "xml"}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func widget(verb string) *Request {
	return &Request{
		Attributes: authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "bob", UID: "7", Groups: []string{"people"}, Extra: map[string][]string{"scope": {"all"}}},
			Verb: verb, ResourceRequest: true, APIGroup: "example.com", APIVersion: "v1", Namespace: "default", Resource: "widgets", Name: "one", Path: "/apis/example.com/v1/namespaces/default/widgets/one",
		},
		ID: "id-1", Path: "/apis/example.com/v1/namespaces/default/widgets/one", RawQuery: "pretty=1&access_token=abc", UserAgent: strings.Repeat("a", 2000),
		SourceIPs: []string{"10.0.0.1"}, Received: time.Now(),
	}
}

// stages describes events briefly.
func stages(events []auditv1.Event) []string {
	var out []string
	for _, ev := range events {
		s := string(ev.Stage) + " " + string(ev.Level)
		if ev.ResponseStatus != nil {
			s += " " + string(rune('0'+ev.ResponseStatus.Code/100)) + "xx"
		}
		out = append(out, s)
	}
	return out
}

func TestStages(t *testing.T) {
	for _, tc := range []struct {
		name, policy string
		long         bool
		do           func(e *Event)
		want         []string
	}{
		{"ordinary", "rules: [{level: Metadata}]", false, func(e *Event) { e.Received(); e.Started(200); e.Completed(200, "") }, []string{"RequestReceived Metadata", "ResponseComplete Metadata 2xx"}},
		{"watch", "rules: [{level: Metadata}]", true, func(e *Event) { e.Received(); e.Started(200); e.Completed(200, "") },
			[]string{"RequestReceived Metadata", "ResponseStarted Metadata 2xx", "ResponseComplete Metadata 2xx"}},
		{"watch without a head", "rules: [{level: Metadata}]", true, func(e *Event) { e.Received(); e.Completed(499, "gone") },
			[]string{"RequestReceived Metadata", "ResponseStarted Metadata 4xx", "ResponseComplete Metadata 4xx"}},
		{"omitted", "omitStages: [RequestReceived]\nrules: [{level: Request, omitStages: [ResponseStarted]}]", true, func(e *Event) { e.Received(); e.Started(200); e.Completed(503, "x") }, []string{"ResponseComplete Request 5xx"}},
		{"refused", "rules: [{level: Metadata}]", false, func(e *Event) { e.Refused(401, "no") }, []string{"ResponseStarted Metadata 4xx"}},
		{"panic", "rules: [{level: Metadata}]", false, func(e *Event) { e.Received(); e.Panicked() }, []string{"RequestReceived Metadata", "Panic Metadata 5xx"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := write(t, Config{Policy: evaluator(t, tc.policy)}, func(l *Log) {
				r := widget("get")
				r.LongRunning = tc.long
				tc.do(l.Open(r))
			})
			check.Same(t, tc.want, stages(got), "stages")
		})
	}
}

func TestPolicy(t *testing.T) {
	rules := "rules: [{level: None, users: [bob], verbs: [get]}, {level: Request, resources: [{group: example.com}]}, {level: Metadata}]"
	write(t, Config{Policy: evaluator(t, rules)}, func(l *Log) {
		if e := l.Open(widget("get")); e != nil {
			t.Errorf("the policy omits this request, and it was opened: %+v", e.ev)
		}
		if e := l.Open(widget("list")); e == nil || !e.Bodies() {
			t.Error("a body at level Request is not recorded")
		}
		nobody := &Request{Attributes: authorizer.AttributesRecord{Verb: "get", Path: "/readyz"}}
		if e := l.Open(nobody); e == nil || e.Bodies() {
			t.Error("a request without a user is not recorded as metadata")
		}
	})
}

func TestMetadata(t *testing.T) {
	got := write(t, Config{Policy: evaluator(t, "rules: [{level: Metadata}]")}, func(l *Log) {
		e := l.Open(widget("get"))
		e.Impersonated(&user.DefaultInfo{Name: "jane"})
		e.Annotate("k", "v")
		e.Completed(200, "")
	})
	if len(got) != 1 {
		t.Fatalf("%d events", len(got))
	}
	ev := got[0]
	check.Same(t, "/apis/example.com/v1/namespaces/default/widgets/one?pretty=1&access_token=MASKED", ev.RequestURI, "requestURI")
	if ev.User.Username != "bob" || ev.User.UID != "7" || ev.ImpersonatedUser == nil || ev.ImpersonatedUser.Username != "jane" || ev.User.Extra["scope"][0] != "all" {
		t.Errorf("user %+v, impersonated %+v", ev.User, ev.ImpersonatedUser)
	}
	if o := ev.ObjectRef; o == nil || o.Resource != "widgets" || o.Name != "one" || o.APIGroup != "example.com" || o.Namespace != "default" {
		t.Errorf("objectRef %+v", o)
	}
	if len(ev.UserAgent) != maxAgent+len("...TRUNCATED") || ev.AuditID != "id-1" || ev.Annotations["k"] != "v" || ev.SourceIPs[0] != "10.0.0.1" {
		t.Errorf("%+v", ev)
	}
}

func zip(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, s)
	_ = w.Close()
	return b.String()
}

func TestBodies(t *testing.T) {
	const object = `{"metadata":{"name":"one","managedFields":[{"manager":"m"}]},"spec":1}`
	const list = `{"items":[` + object + `]}`
	for _, tc := range []struct {
		name, policy                  string
		request, requestType          string
		response, responseType, coded string
		wantRequest, wantResponse     string
		annotations                   map[string]string
	}{
		{"metadata", "rules: [{level: Metadata}]", object, "application/json", object, "application/json", "", "", "", nil},
		{"request", "rules: [{level: Request}]", object, "application/json", object, "application/json", "", object, "", nil},
		{"both", "rules: [{level: RequestResponse}]", object, "application/merge-patch+json", list, "application/json;charset=utf-8", "", object, list, nil},
		{"an apply by kubectl or client-go", "rules: [{level: Request}]", object, "application/apply-patch+yaml", "", "", "", object, "", nil},
		{"an apply in YAML", "rules: [{level: Request}]", "spec: 1", "application/apply-patch+yaml", "", "", "", "", "", map[string]string{annotateRequest: "not recorded: not JSON"}},
		{"zipped", "rules: [{level: RequestResponse}]", "", "", list, "application/json", "gzip", "", list, nil},
		{"without managed fields", "omitManagedFields: true\nrules: [{level: RequestResponse}]", object, "application/json", list, "application/json", "",
			`{"metadata":{"name":"one"},"spec":1}`, `{"items":[{"metadata":{"name":"one"},"spec":1}]}`, nil},
		{"protobuf", "rules: [{level: RequestResponse}]", "k8s\x00", "application/vnd.kubernetes.protobuf", "k8s\x00", "application/vnd.kubernetes.protobuf", "", "", "",
			map[string]string{annotateRequest: "not recorded: not JSON", annotateResponse: "not recorded: not JSON"}},
		{"lies", "rules: [{level: RequestResponse}]", "{", "application/json", "[1,2", "application/json", "", "", "",
			map[string]string{annotateRequest: "not recorded: not JSON", annotateResponse: "not recorded: not JSON"}},
		{"a bomb", "rules: [{level: RequestResponse}]", strings.Repeat(" ", maxBody+1), "application/json", strings.Repeat(" ", maxBody+1), "application/json", "gzip", "", "",
			map[string]string{annotateRequest: "not recorded: longer than 1 MiB", annotateResponse: "not recorded: longer than 1 MiB"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := write(t, Config{Policy: evaluator(t, tc.policy)}, func(l *Log) {
				e := l.Open(widget("update"))
				body := e.Request(io.NopCloser(strings.NewReader(tc.request)), tc.requestType)
				if read, err := io.ReadAll(body); err != nil || string(read) != tc.request {
					t.Errorf("the backend read %q, %v", read, err)
				}
				e.ResponseHead(tc.responseType, tc.coded)
				response := tc.response
				if tc.coded == "gzip" {
					response = zip(response)
				}
				for _, half := range []string{response[:len(response)/2], response[len(response)/2:]} {
					e.Response([]byte(half))
				}
				e.Completed(200, "")
			})
			if len(got) != 1 {
				t.Fatalf("%d events", len(got))
			}
			var request, response string
			if o := got[0].RequestObject; o != nil {
				request = string(o.Raw)
			}
			if o := got[0].ResponseObject; o != nil {
				response = string(o.Raw)
			}
			if request != tc.wantRequest || response != tc.wantResponse {
				t.Errorf("request %q, response %q", request, response)
			}
			check.Same(t, tc.annotations, got[0].Annotations, "annotations")
		})
	}
}

// stuck is a writer that blocks, and then fails.
type stuck struct{ open chan struct{} }

func (s stuck) Write([]byte) (int, error) { <-s.open; return 0, errors.New("no space left") }

// A log that cannot be written drops and counts events. It never blocks a request.
func TestLosses(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := stuck{make(chan struct{})}
	var log *Log
	const total = 2*queued + 5000
	write(t, Config{Policy: evaluator(t, "rules: [{level: Metadata}]"), Writer: w, Metrics: reg}, func(l *Log) {
		log = l
		e := l.Open(widget("get"))
		for range total {
			e.Completed(200, "")
		}
		if lost := testutil.ToFloat64(l.lost); lost < 1000 {
			t.Errorf("%v events were lost while the writer was blocked", lost)
		}
		close(w.open)
	})
	if lost, written := testutil.ToFloat64(log.lost), testutil.ToFloat64(log.events); lost != total || written != 0 {
		t.Errorf("%v lost, %v written", lost, written)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// narrow refuses what is longer than a file, as the writer that rotates files does.
type narrow struct{ bytes.Buffer }

func (w *narrow) Write(p []byte) (int, error) {
	if len(p) > 2*maxBody {
		return 0, errors.New("longer than a file")
	}
	return w.Buffer.Write(p)
}

// A body with which an event is too long for a file costs neither the event nor those around it.
func TestLongLine(t *testing.T) {
	var out narrow
	l := must.Get(New(Config{Policy: evaluator(t, "rules: [{level: RequestResponse}]"), Writer: &out}))(t)
	for _, body := range []string{"1", `"` + strings.Repeat("<", maxBody-2) + `"`, "2"} {
		e := l.Open(widget("update"))
		_, _ = io.Copy(io.Discard, e.Request(io.NopCloser(strings.NewReader(body)), "application/json"))
		e.Completed(200, "")
	}
	must.Run(t, l.Run)()
	var got []string
	for line := range strings.Lines(out.String()) {
		var ev auditv1.Event
		must.Do(t, json.Unmarshal([]byte(line), &ev))
		if ev.RequestObject != nil {
			got = append(got, string(ev.RequestObject.Raw))
		} else {
			got = append(got, ev.Annotations[annotateRequest])
		}
	}
	check.Same(t, []string{"1", "not recorded: the line could not be written", "2"}, got, "bodies of the events")
}

// Bodies of queued events are limited in size, too, not only in number.
func TestWaitingBodies(t *testing.T) {
	l := must.Get(New(Config{Policy: evaluator(t, "rules: [{level: RequestResponse}]"), Writer: io.Discard}))(t)
	body := `"` + strings.Repeat("x", 1000_000) + `"`
	for range 100 {
		e := l.Open(widget("update"))
		_, _ = io.Copy(io.Discard, e.Request(io.NopCloser(strings.NewReader(body)), "application/json"))
		e.Completed(200, "")
	}
	if n, lost := len(l.queue), testutil.ToFloat64(l.lost); n != (maxWaiting-maxWaiting/32)/len(body) || lost != float64(100-n) {
		t.Errorf("%d queued, %v lost", n, lost)
	}
}

// Bodies of requests under way are limited, too: slow uploads of one user do not use up the memory,
// nor do they cost the bodies of others. Each request gives back what it held.
func TestCapturedBodies(t *testing.T) {
	l := must.Get(New(Config{Policy: evaluator(t, "rules: [{level: RequestResponse}]"), Writer: io.Discard}))(t)
	record := func(name string, bytes int) *Event {
		r := widget("update")
		r.Attributes.User = &user.DefaultInfo{Name: name}
		e := l.Open(r)
		_, _ = io.Copy(io.Discard, e.Request(io.NopCloser(strings.NewReader(strings.Repeat("1", bytes))), "application/json"))
		return e
	}
	var slow []*Event
	recorded := 0
	for range 100 {
		e := record("bob", maxBody)
		slow = append(slow, e)
		if e.bodies.request.why == "" {
			recorded++
		}
	}
	if held := l.captured.Held(); recorded < 15 || held < int64(recorded)*maxBody || held > maxCaptured/4 {
		t.Errorf("%d bodies of a user are recorded, which hold %d bytes", recorded, held)
	}
	check.Same(t, "", record("jane", maxBody).bodies.request.why, "why another user's is not")
	for i, e := range append(slow, record("jane", 1)) {
		if e.ResponseHead("application/json", ""); i%2 == 0 {
			e.Response([]byte("1"))
		}
		if i%3 == 0 {
			e.Panicked()
		} else {
			e.Completed(200, "")
		}
		e.bodies.request.add([]byte("late"))
	}
	check.Same(t, maxBody, l.captured.Held(), "bytes held by requests that have not ended")
}

// So are long paths and queries, and messages that repeat them: strangers choose them.
func TestWaitingTexts(t *testing.T) {
	l := must.Get(New(Config{Policy: evaluator(t, "rules: [{level: Metadata}]"), Writer: io.Discard}))(t)
	for n, want := range map[int]int64{longText - 1: 0, longText: longText} {
		l := must.Get(New(Config{Policy: evaluator(t, "rules: [{level: Metadata}]"), Writer: io.Discard}))(t)
		l.Open(&Request{Path: "/"}).Completed(403, strings.Repeat("x", n-1))
		if got := l.waiting.Held(); got != want {
			t.Errorf("%d bytes of text count as %d", n, got)
		}
	}
	long := strings.Repeat("x", 200<<10)
	for _, tc := range []struct{ path, query, message string }{{path: "/" + long}, {query: long}, {message: long}} {
		for range 1000 {
			l.Open(&Request{Path: tc.path, RawQuery: tc.query, SourceIPs: []string{"10.0.0.1"}}).Completed(403, tc.message)
		}
		if n := len(l.queue); n > maxWaiting/len(long) {
			t.Errorf("%d events of %d bytes wait", n, len(long))
		}
	}
	ordinary := len(l.queue)
	for range 1000 {
		l.Open(widget("get")).Completed(200, "")
	}
	if n := len(l.queue) - ordinary; n != 1000 {
		t.Errorf("%d of 1000 ordinary events wait behind long ones", n)
	}
}

// A user or stranger with more events than can be written loses only events of that source.
func TestLossesOfOneSource(t *testing.T) {
	of := func(name, address string) *Request {
		r := widget("get")
		r.Attributes.User, r.SourceIPs = &user.DefaultInfo{Name: name}, []string{address}
		return r
	}
	for name, tc := range map[string]struct {
		noisy, other *Request
	}{
		"a user":               {of("bob", "10.0.0.1"), of("somebody else", "10.0.0.1")},
		"an address":           {of(user.Anonymous, "10.0.0.1"), of(user.Anonymous, "10.0.0.2")},
		"an unknown user's":    {of("", "10.0.0.1"), of("", "10.0.0.2")},
		"a subscriber of IPv6": {of(user.Anonymous, "2001:db8::1"), of(user.Anonymous, "2001:db8:0:1::1")},
	} {
		l := must.Get(New(Config{Policy: evaluator(t, "rules: [{level: Metadata}]"), Writer: io.Discard}))(t)
		noisy := []*Event{l.Open(tc.noisy)}
		if before, found := strings.CutSuffix(tc.noisy.SourceIPs[0], "::1"); found {
			for i := range 7 {
				noisy = append(noisy, l.Open(of(user.Anonymous, fmt.Sprintf("%s::%d", before, i+2))))
			}
		}
		for i := range 2 * queued {
			noisy[i%len(noisy)].Completed(200, "")
		}
		lost := testutil.ToFloat64(l.lost)
		l.Open(tc.other).Completed(200, "")
		if now := testutil.ToFloat64(l.lost); lost < queued || now != lost {
			t.Errorf("%s: %v lost, then %v: an event of another source was lost, too", name, lost, now)
		}
	}
}

func TestMask(t *testing.T) {
	for in, want := range map[string]string{
		"":                                     "",
		"watch=true&labelSelector=a%3Db":       "watch=true&labelSelector=a%3Db",
		"continue=eyJ2&limit=500":              "continue=eyJ2&limit=500",
		"token=abc":                            "token=MASKED",
		"a=1&access_token=x.y.z&b=2":           "a=1&access_token=MASKED&b=2",
		"X-Amz-Signature=abc&X-Amz-Expires=60": "X-Amz-Signature=MASKED&X-Amz-Expires=60",
		"%74oken=abc":                          "%74oken=MASKED",
		"a=1;token=abc":                        "a=1;token=MASKED",
		"PASSWORD=a=b":                         "PASSWORD=MASKED",
		"token=&sig=s&code=c&key=k":            "token=&sig=MASKED&code=MASKED&key=MASKED",
		"&a=1&token=2":                         "&a=1&token=MASKED",
		"%zz=1&token=2":                        "%zz=1&token=MASKED",
		"token":                                "token",
	} {
		check.Same(t, want, Mask(in), "Mask(%q)", in)
	}
}

// Masking a query replaces only values that may be secrets, and masking it again changes nothing.
func FuzzMask(f *testing.F) {
	for _, q := range []string{"a=1&token=hunter2;b", "a=%zz&TOKEN=%zz&a=2&a", "=x&&;=;%3D=1&code==", "pass%77ord=1&key", "sig=%26token=a"} {
		f.Add(q)
	}
	read := func(q string) url.Values {
		v, _ := url.ParseQuery(strings.ReplaceAll(q, ";", "&")) // ignores errors
		return v
	}
	f.Fuzz(func(t *testing.T, q string) {
		got := Mask(q)
		check.Same(t, got, Mask(got), "Mask(%q), masked again", q)
		before, after := read(q), read(got)
		for name, values := range after {
			if !secret(strings.ToLower(name)) {
				continue
			}
			for _, v := range values {
				if v != "" && v != masked {
					t.Errorf("Mask(%q) = %q, which shows %q", q, got, v)
				}
			}
			delete(before, name)
			delete(after, name)
		}
		check.Same(t, before, after, "Mask(%q) = %q changes more than secrets", q, got)
		if !strings.Contains(q, "hunter2") && strings.Contains(Mask(q+"&access_token=hunter2"), "hunter2") {
			t.Errorf("%q prevents masking after it", q)
		}
	})
}
