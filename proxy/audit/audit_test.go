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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func evaluator(t *testing.T, text string) audit.PolicyRuleEvaluator {
	t.Helper()
	return policy.NewPolicyRuleEvaluator(must.Get(policy.LoadPolicyFromBytes([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n" + text)))(t))
}

func atLevel(t *testing.T, level string, w io.Writer) *Log {
	t.Helper()
	return New(Config{Policy: evaluator(t, "rules: [{level: "+level+"}]"), Writer: w})
}

func events(t *testing.T, l *Log, out fmt.Stringer) []auditv1.Event {
	t.Helper()
	must.Run(t, l.Run)()
	check.Same(t, 0, testutil.ToFloat64(l.lost), "events lost")
	var list []auditv1.Event
	for line := range strings.Lines(out.String()) {
		var ev auditv1.Event
		must.Do(t, json.Unmarshal([]byte(line), &ev))
		list = append(list, ev)
	}
	return list
}

func TestStages(t *testing.T) {
	const metadata = "rules: [{level: Metadata}]"
	for _, tc := range []struct {
		name, policy string
		long         bool
		do           func(e *Event)
		want         []string
	}{
		{"ordinary", metadata, false, func(e *Event) { e.Received(); e.Started(200); e.Completed(200, "", "") }, []string{"RequestReceived Metadata", "ResponseComplete Metadata 200"}},
		{"watch", metadata, true, func(e *Event) { e.Received(); e.Started(200); e.Completed(200, "", "") },
			[]string{"RequestReceived Metadata", "ResponseStarted Metadata 200", "ResponseComplete Metadata 200"}},
		{"watch without a head", metadata, true, func(e *Event) { e.Received(); e.Completed(499, "gone", "") },
			[]string{"RequestReceived Metadata", "ResponseStarted Metadata 499 Failure", "ResponseComplete Metadata 499 Failure"}},
		{"omitted", "omitStages: [RequestReceived]\nrules: [{level: Request, omitStages: [ResponseStarted]}]", true, func(e *Event) {
			e.Received()
			e.Started(200)
			e.Completed(503, "x", "ServiceUnavailable")
		}, []string{"ResponseComplete Request 503 Failure ServiceUnavailable"}},
		{"refused", metadata, false, func(e *Event) { e.Refused(401, "no") }, []string{"ResponseStarted Metadata 401 Failure Unauthorized"}},
		{"left out", "rules: [{level: None, users: [bob], verbs: [get]}, {level: Metadata}]", false, nil, nil},
		{"panic", metadata, false, func(e *Event) { e.Received(); e.Panicked() }, []string{"RequestReceived Metadata", "Panic Metadata 500 Failure InternalError"}},
	} {
		var out bytes.Buffer
		l := New(Config{Policy: evaluator(t, tc.policy), Writer: &out})
		r := widget("get")
		r.LongRunning = tc.long
		if e := l.Open(r); e != nil {
			tc.do(e)
		}
		var got []string
		for _, ev := range events(t, l, &out) {
			words := []string{string(ev.Stage), string(ev.Level)}
			if s := ev.ResponseStatus; s != nil {
				words = append(words, strings.Fields(fmt.Sprint(s.Code, " ", s.Status, " ", s.Reason))...)
			}
			got = append(got, strings.Join(words, " "))
			if ev.Stage == auditv1.StageRequestReceived {
				check.Same(t, ev.RequestReceivedTimestamp.UnixMicro(), ev.StageTimestamp.UnixMicro(), "%s: time of the head", tc.name)
			}
		}
		check.Same(t, tc.want, got, "%s: stages", tc.name)
	}
}

func TestMetadata(t *testing.T) {
	var out bytes.Buffer
	l := atLevel(t, "Metadata", &out)
	l.Open(&Request{Attributes: authorizer.AttributesRecord{Verb: "get", Path: "/readyz"}}).Completed(200, "", "") // by nobody
	e := l.Open(widget("get"))
	e.Impersonated(&user.DefaultInfo{Name: "jane"})
	e.Annotate("k", "v")
	e.Completed(200, "", "")
	both := events(t, l, &out)
	check.Same(t, "", both[0].User.Username, "user of a request without one")
	ev := both[1]
	check.Same(t, "/apis/example.com/v1/namespaces/default/widgets/one?pretty=1&access_token=MASKED", ev.RequestURI, "requestURI")
	must.Be(t, ev.ImpersonatedUser != nil && ev.ObjectRef != nil, "%+v", ev)
	check.Same(t, [4]string{"bob", "7", "jane", "all"}, [4]string{ev.User.Username, ev.User.UID, ev.ImpersonatedUser.Username, ev.User.Extra["scope"][0]}, "the user, and as whom")
	o := ev.ObjectRef
	check.Same(t, [4]string{"widgets", "one", "example.com", "default"}, [4]string{o.Resource, o.Name, o.APIGroup, o.Namespace}, "objectRef")
	check.Same(t, maxAgent+len("...TRUNCATED"), len(ev.UserAgent), "bytes of the User-Agent")
	check.Same(t, [3]string{"id-1", "v", "10.0.0.1"}, [3]string{string(ev.AuditID), ev.Annotations["k"], ev.SourceIPs[0]}, "ID, annotation and source")
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
		{"a patch of managed fields", "omitManagedFields: true\nrules: [{level: Request}]", object, "application/merge-patch+json", "", "", "", object, "", nil},
		{"a table without managed fields", "omitManagedFields: true\nrules: [{level: RequestResponse}]", "", "", `{"rows":[0,{"object":` + object + `}]}`, "application/json", "",
			"", `{"rows":[0,{"object":{"metadata":{"name":"one"},"spec":1}}]}`, nil},
		{"protobuf", "rules: [{level: RequestResponse}]", "k8s\x00", "application/vnd.kubernetes.protobuf", "k8s\x00", "application/vnd.kubernetes.protobuf", "", "", "",
			map[string]string{annotateRequest: "not recorded: not JSON", annotateResponse: "not recorded: not JSON"}},
		{"lies", "rules: [{level: RequestResponse}]", "{", "application/json", "[1,2", "application/json", "", "", "",
			map[string]string{annotateRequest: "not recorded: not JSON", annotateResponse: "not recorded: not JSON"}},
		{"a bomb", "rules: [{level: RequestResponse}]", strings.Repeat(" ", maxBody+1), "application/json", strings.Repeat(" ", maxBody+1), "application/json", "gzip", "", "",
			map[string]string{annotateRequest: "not recorded: longer than 1 MiB", annotateResponse: "not recorded: longer than 1 MiB"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			l := New(Config{Policy: evaluator(t, tc.policy), Writer: &out})
			e := l.Open(widget("update"))
			check.Same(t, !strings.Contains(tc.policy, "Metadata"), e.Bodies(), "bodies are recorded")
			body := e.Request(io.NopCloser(strings.NewReader(tc.request)), tc.requestType)
			check.Same(t, tc.request, string(must.Get(io.ReadAll(body))(t)), "what the backend reads")
			e.ResponseHead(tc.responseType, tc.coded)
			response := tc.response
			if tc.coded == "gzip" {
				response = zip(response)
			}
			e.Response([]byte(response[:len(response)/2]))
			e.Response([]byte(response[len(response)/2:]))
			e.Completed(200, "", "")
			ev := events(t, l, &out)[0]
			for want, got := range map[string]*runtime.Unknown{"request " + tc.wantRequest: ev.RequestObject, "response " + tc.wantResponse: ev.ResponseObject} {
				side, body, _ := strings.Cut(want, " ")
				check.Same(t, body != "", got != nil, "there is a %s", side)
				if got != nil {
					check.Same(t, body, string(got.Raw), "%s", side)
				}
			}
			check.Same(t, tc.annotations, ev.Annotations, "annotations")
		})
	}
}

type stuck struct{ open chan struct{} }

func (s stuck) Write([]byte) (int, error) { <-s.open; return 0, errors.New("no space left") }

// A log that cannot be written drops and counts events. It never blocks a request.
func TestLosses(t *testing.T) {
	reg, w := prometheus.NewRegistry(), stuck{make(chan struct{})}
	l := New(Config{Policy: evaluator(t, "rules: [{level: Metadata}]"), Writer: w, Sinks: metric.Sinks{Metrics: reg}})
	stop := must.Run(t, l.Run)
	const total = 2*queued + 5000
	e := l.Open(widget("get"))
	for range total {
		e.Completed(200, "", "")
	}
	check.Within(t, 1000, total, testutil.ToFloat64(l.lost), "events lost while the writer was blocked")
	close(w.open)
	stop()
	check.Same(t, [2]float64{total, 0}, [2]float64{testutil.ToFloat64(l.lost), testutil.ToFloat64(l.events)}, "events lost and written")
	problems := must.Get(testutil.GatherAndLint(reg))(t)
	check.Same(t, 0, len(problems), "problems of the metrics: %v", problems)
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
	l := atLevel(t, "RequestResponse", &out)
	for _, body := range []string{"1", `"` + strings.Repeat("<", maxBody-2) + `"`, "2"} {
		update(l, "bob", body).Completed(200, "", "")
	}
	var got []string
	for _, ev := range events(t, l, &out) {
		if ev.RequestObject != nil {
			got = append(got, string(ev.RequestObject.Raw))
		} else {
			got = append(got, ev.Annotations[annotateRequest])
		}
	}
	check.Same(t, []string{"1", "not recorded: the line could not be written", "2"}, got, "bodies of the events")
}

// Queued events are limited in size, too, not only in number: their bodies, long paths, queries and messages that
// repeat them, which strangers choose, and users with many groups. Ordinary events still find room.
func TestWaitingEvents(t *testing.T) {
	l := atLevel(t, "RequestResponse", io.Discard)
	body := `"` + strings.Repeat("x", 1000_000) + `"`
	for range 100 {
		update(l, "bob", body).Completed(200, "", "")
	}
	check.Same(t, (maxWaiting-maxWaiting/32)/len(body), len(l.queue), "events queued")
	check.Same(t, float64(100-len(l.queue)), testutil.ToFloat64(l.lost), "events lost")
	check.Same(t, int64(len(l.queue)), l.places.Held(), "places of events in the queue")
	for n, want := range map[int]int64{longText - 1: 0, longText: longText} {
		l := atLevel(t, "Metadata", io.Discard)
		l.Open(&Request{Path: "/"}).Completed(403, strings.Repeat("x", n-len("/")-(&auditv1.Event{}).User.Size()), "")
		check.Same(t, want, l.waiting.Held(), "size of an event with %d bytes of text", n)
	}
	long := strings.Repeat("x", 200<<10)
	groups := &user.DefaultInfo{Name: "jane", Groups: []string{long}}
	for _, tc := range []struct {
		path, query, message, verb string
		user, as                   user.Info
	}{{path: "/" + long}, {query: long}, {query: "token=" + long}, {message: long}, {verb: long}, {user: groups}, {as: groups}} {
		l := atLevel(t, "Metadata", io.Discard)
		for range 400 {
			e := l.Open(&Request{Path: tc.path, RawQuery: tc.query, From: from(nil, "10.0.0.1"), Attributes: authorizer.AttributesRecord{User: tc.user, Verb: tc.verb}})
			if tc.as != nil {
				e.Impersonated(tc.as)
			}
			e.Completed(403, tc.message, "")
		}
		waiting := len(l.queue)
		for range 400 {
			l.Open(widget("get")).Completed(200, "", "")
		}
		check.Within(t, 0, maxWaiting/len(long), waiting, "long events that wait")
		check.Same(t, 400, len(l.queue)-waiting, "ordinary ones behind them")
	}
}

// Bodies of requests under way are limited, too: slow uploads of one user do not use up the memory,
// nor do they cost the bodies of others. Each request gives back what it held.
func TestCapturedBodies(t *testing.T) {
	l := atLevel(t, "RequestResponse", io.Discard)
	var slow []*Event
	recorded := 0
	for range 100 {
		e := update(l, "bob", strings.Repeat("1", maxBody))
		slow = append(slow, e)
		if e.request.why == "" {
			recorded++
		}
	}
	check.Within(t, 15, 100, recorded, "bodies of a user that are recorded")
	check.Within(t, int64(recorded)*maxBody, maxCaptured/4, l.captured.Held(), "bytes that they hold")
	check.Same(t, "", update(l, "jane", strings.Repeat("1", maxBody)).request.why, "why another user's is not")
	for i, e := range append(slow, update(l, "jane", "1")) {
		if e.ResponseHead("application/json", ""); i%2 == 0 {
			e.Response([]byte("1"))
		}
		if i%3 == 0 {
			e.Panicked()
		} else {
			e.Completed(200, "", "")
		}
		_, _ = e.request.Write([]byte("late"))
	}
	check.Same(t, maxBody, l.captured.Held(), "bytes held by requests that have not ended")
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
				check.Same(t, true, v == "" || v == "MASKED", "Mask(%q) = %q, which hides %q", q, got, v)
			}
			delete(before, name)
			delete(after, name)
		}
		check.Same(t, before, after, "Mask(%q) = %q changes more than secrets", q, got)
		check.Same(t, false, !strings.Contains(q, "hunter2") && strings.Contains(Mask(q+"&access_token=hunter2"), "hunter2"), "%q prevents masking after it", q)
	})
}
