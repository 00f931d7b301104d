// Package tracing makes an OpenTelemetry span of each request, over either protocol, like kube-apiserver: with the same
// span names, the same rule for continuing a trace, and the same header to the backend.
//
// The concurrency rule: Start is safe for concurrent use; a Span belongs to its request. The
// provider exports spans in a goroutine of its own, with limits of its own.
//
// This package does not make or end the provider. No query or credential becomes an attribute.
package tracing

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// The fields of W3C Trace Context that Span.Fields sets.
const parentHeader, stateHeader = "traceparent", "tracestate"

// Carries reports whether Span.Fields sets a field, so that the client's is replaced. The name must be in lower case.
func Carries(name string) bool { return name == parentHeader || name == stateHeader }

// Span is one request's span.
type Span struct {
	span  trace.Span
	began time.Time
}

// Start begins a span when a head has arrived. id is the request's ID in audit logs. A trusted
// caller's trace is continued; for another one a new trace is started, with a link to the caller's.
func Start(t trace.Tracer, h *wire.Head, name, id string, began time.Time, trusted bool) *Span {
	ctx := context.Background()
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(began)}
	received := propagation.MapCarrier{}
	for _, f := range slices.Backward(h.Fields) { // the first of several counts
		if Carries(f.Name) {
			received[f.Name] = f.Value
		}
	}
	if from := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(ctx, received)); from.IsValid() {
		if trusted {
			ctx = trace.ContextWithRemoteSpanContext(ctx, from)
		} else {
			options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: from}))
		}
	}
	_, span := t.Start(ctx, text(name), options...)
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String("http.request.method", text(h.Method)),
			attribute.String("url.path", text(h.Path)),
			attribute.String("audit-id", text(id)),
		)
	}
	return &Span{span: span, began: began}
}

// maxText limits each text that a client chooses: the exporter's queue has 2,048 spans while the collector is down.
const maxText = 1 << 10

// text returns a client's text as a span may have it: its first maxText bytes, without keeping in memory what it is of
// (a path is of its target), and in UTF-8, because one other byte would make the exporter lose a batch.
func text(s string) string {
	return strings.ToValidUTF8(strings.Clone(s[:min(len(s), maxText)]), "\uFFFD")
}

// Fields appends the trace context for the next hop.
func (s *Span) Fields(set []hpack.HeaderField) []hpack.HeaderField {
	out := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), s.span.SpanContext()), out)
	for name, value := range out {
		// Sensitive keeps fields that differ in each request out of HPACK's tables.
		set = append(set, hpack.HeaderField{Name: name, Value: value, Sensitive: true})
	}
	return set
}

// End ends the span of a request for a verb and an APIService, or none, counted by code. wrong is a brief fault.
func (s *Span) End(o *engine.Outcome, code int, verb, apiService, wrong string) {
	if s.span.IsRecording() {
		status := attribute.Int("http.response.status_code", o.Status)
		if o.Wait > 0 {
			at := trace.WithTimestamp(s.began.Add(o.Wait))
			s.span.AddEvent("response head", at, trace.WithAttributes(status))
		}
		s.span.SetAttributes(status, attribute.String("k8s.verb", text(verb)))
		if apiService != "" {
			s.span.SetAttributes(attribute.String("fairlead.apiservice", apiService))
		}
		if o.Endpoint != nil {
			s.span.SetAttributes(attribute.String("fairlead.endpoint", o.Endpoint.Name))
		}
		if o.Retries > 0 {
			s.span.SetAttributes(attribute.Int("fairlead.retries", o.Retries))
		}
		// As in OpenTelemetry's conventions for servers, a client's error is no error of the span.
		if code >= http.StatusInternalServerError {
			s.span.SetStatus(codes.Error, text(wrong))
		}
	}
	s.span.End(trace.WithTimestamp(s.began.Add(o.Duration)))
}
