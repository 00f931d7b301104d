package proxy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	tracing "k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	traced "github.com/fairlead-proxy/fairlead/proxy/tracing"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/otlp"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// tracer sends spans to a collector. read waits for n of them, stops the tracer, and returns all
// spans. A span may end after its answer.
func tracer(t *testing.T, perMillion int32) (tr *traced.Tracer, read func(n int) []otlp.Span) {
	t.Helper()
	c := must.Get(otlp.Start(t.Context()))(t)
	t.Cleanup(c.Close)
	provider := must.Get(tracing.NewProvider(t.Context(), &tracingapi.TracingConfiguration{Endpoint: &c.Address, SamplingRatePerMillion: &perMillion}, nil, nil))(t)
	return traced.New(provider), func(n int) []otlp.Span {
		for patience := time.Now().Add(10 * time.Second); len(c.Spans()) < n && time.Now().Before(patience); {
			must.Do(t, provider.(interface{ ForceFlush(context.Context) error }).ForceFlush(t.Context()))
		}
		must.Do(t, provider.Shutdown(context.WithoutCancel(t.Context())))
		return c.Spans()
	}
}

const (
	callersTrace = "0af7651916cd43dd8448eb211c80319c"
	callersSpan  = "b7ad6b7169203331"
	callers      = "00-" + callersTrace + "-" + callersSpan + "-01"
)

// Traces are continued for the callers for which kube-apiserver continues them. For others a new
// trace begins, with a link.
func TestTrace(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		tr, read := tracer(t, 1_000_000)
		w := newWorld(t, worldConfig{tracer: tr})
		master := w.client.Issue(pki.Leaf{CommonName: "root", Organizations: []string{"system:masters"}})
		other := w.client.Issue(pki.Leaf{CommonName: "alice"})
		var sent []string
		for _, pair := range []*pki.Pair{master, other} {
			for _, target := range []string{remoteGV + "/namespaces/ns/widgets/one/status?secret=1", "/api/v1/pods"} {
				r := w.request(t, "GET", target, nil)
				r.Header.Set("Traceparent", callers)
				r.Header.Set("Tracestate", "vendor=1")
				w.do(t, w.httpClient(t, proto, pair), r)
				far := w.remote
				if strings.HasPrefix(target, "/api/") {
					far = w.local
				}
				h := far.last(t).header
				if got := h.Values("Traceparent"); len(got) != 1 {
					t.Fatalf("forwarded with the parents %q", got)
				}
				if state := h.Get("Tracestate"); (state == "vendor=1") != (pair == master) {
					t.Errorf("forwarded with the state %q", state)
				}
				sent = append(sent, h.Get("Traceparent"))
			}
		}
		spans := read(4)
		if len(spans) != 4 {
			t.Fatalf("%d spans: %+v", len(spans), spans)
		}
		for i, s := range spans {
			check.Same(t, fmt.Sprintf("00-%s-%s-01", s.Trace, s.ID), sent[i], "forwarded, as the span is")
			if continued := i < 2; continued != (s.Trace == callersTrace && s.Parent == callersSpan && len(s.Links) == 0) ||
				!continued && (s.Parent != "" || len(s.Links) != 1 || s.Links[0] != callersTrace) {
				t.Errorf("%d: %+v", i, s)
			}
			want := []string{"GET /apis/remote.example.com/v1/namespaces/{:namespace}/widgets/{:name}/status", "GET /api/v1/pods"}[i%2]
			a := s.Attributes
			if s.Name != want || a["k8s.verb"] != []string{"get", "list"}[i%2] || a["http.response.status_code"] != "200" || a["http.request.method"] != "GET" || len(a["audit-id"]) != 36 || strings.Contains(fmt.Sprint(a), "secret") {
				t.Errorf("%q %v", s.Name, a)
			}
			if len(s.Events) != 1 || s.Events[0] != "response head" {
				t.Errorf("events %q", s.Events)
			}
			if remote := i%2 == 0; remote && a["fairlead.apiservice"] != "v1.remote.example.com" || proto == "h2" && a["fairlead.endpoint"] == "" {
				t.Errorf("attributes %v", a)
			}
		}
	})
}

// An unsampled request is not exported, even if the client asks for it, unless the client's trace
// is continued. The forwarded context says that it is not sampled.
func TestTraceNotSampled(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		tr, read := tracer(t, 0)
		w := newWorld(t, worldConfig{tracer: tr, unhealthy: false})
		for _, groups := range [][]string{nil, {"system:masters"}} {
			r := w.request(t, "GET", remoteGV+"/widgets", nil)
			r.Header.Set("Traceparent", callers)
			w.do(t, w.httpClient(t, proto, w.client.Issue(pki.Leaf{CommonName: "alice", Organizations: groups})), r)
			if got := w.remote.last(t).header.Get("Traceparent"); strings.HasSuffix(got, "-01") != (groups != nil) || len(got) != len(callers) {
				t.Errorf("%v: forwarded with %q", groups, got)
			}
		}
		if spans := read(1); len(spans) != 1 || spans[0].Parent != callersSpan {
			t.Errorf("%+v", spans)
		}
	})
}

// What a client chooses is cut: thousands of spans wait while the collector is down. Its bytes that
// are no UTF-8 cost nobody a span: the exporter sends spans of many requests together, and would
// lose them all.
func TestTraceIsText(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		tr, read := tracer(t, 1_000_000)
		w := newWorld(t, worldConfig{tracer: tr})
		long := strings.Repeat("X", 8<<10)
		for _, target := range []string{remoteGV + "/wid\xffgets", remoteGV + "/" + long, "/" + long} {
			r := w.as(t, "bob", long, target, nil)
			r.Header.Set("Audit-Id", "id\xff")
			w.do(t, w.httpClient(t, proto, nil), r)
		}
		spans := read(3)
		if len(spans) != 3 || spans[0].Attributes["url.path"] != remoteGV+"/wid\uFFFDgets" {
			t.Errorf("%d spans: %+v", len(spans), spans)
		}
		for _, s := range spans {
			for name, text := range s.Attributes {
				if len(text) > 1<<10 || len(s.Name) > 1<<10 {
					t.Errorf("%s has %d bytes, the span's name %d", name, len(text), len(s.Name))
				}
			}
			if !strings.HasPrefix(s.Attributes["url.path"], "/") || !strings.HasPrefix(s.Name, "XX") {
				t.Errorf("%.20q %.20q", s.Name, s.Attributes["url.path"])
			}
		}
	})
}

// Without tracing, a client's trace context is forwarded unchanged.
func TestNoTrace(t *testing.T) {
	w := newWorld(t, worldConfig{})
	everyWay(t, func(t *testing.T, proto string) {
		r := w.as(t, "bob", "GET", remoteGV+"/widgets", nil)
		r.Header.Set("Traceparent", callers)
		w.do(t, w.httpClient(t, proto, nil), r)
		check.Same(t, callers, w.remote.last(t).header.Get("Traceparent"), "forwarded with")
	})
}
