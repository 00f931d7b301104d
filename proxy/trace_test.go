package proxy

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	tracing "k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/otlp"
)

// newTracer sends spans to a collector. spans returns those of the requests that have ended.
func newTracer(t *testing.T, perMillion string) (tr trace.Tracer, spans func() []otlp.Span) {
	t.Helper()
	c, rate := must.Get(otlp.Start(t.Context()))(t), int32(must.Get(strconv.Atoi(perMillion))(t))
	t.Cleanup(c.Close)
	provider := must.Get(tracing.NewProvider(t.Context(), &tracingapi.TracingConfiguration{Endpoint: &c.Address, SamplingRatePerMillion: &rate}, nil, nil))(t)
	t.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(t.Context())) })
	return provider.Tracer("proxy"), func() []otlp.Span {
		must.Do(t, provider.(interface{ ForceFlush(context.Context) error }).ForceFlush(t.Context()))
		return c.Spans()
	}
}

// callersTrace is the trace of the callers of a story.
const callersTrace = "0af7651916cd43dd8448eb211c80319c"

// What a client chooses is cut: thousands of spans wait while the collector is down. Its bytes that are no UTF-8 cost
// nobody a span: the exporter sends spans of many requests together, and would lose them all.
func TestTraceIsText(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		tr, list := newTracer(t, "1000000")
		w := newWorld(t, worldConfig{Config: Config{Tracer: tr}})
		long := strings.Repeat("X", 8<<10)
		for _, target := range []string{remoteGV + "/wid\xffgets", remoteGV + "/" + long, "/" + long} {
			r := w.as(t, "bob", long, target, nil)
			r.Header.Set("Audit-Id", "id\xff")
			w.do(t, w.httpClient(t, proto, nil), r)
		}
		must.Soon(t, 10*time.Second, "three spans", func() bool { return len(list()) == 3 })
		spans := list()
		if spans[0].Attributes["url.path"] != remoteGV+"/wid\uFFFDgets" {
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
