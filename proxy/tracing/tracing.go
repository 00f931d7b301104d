// Package tracing makes an OpenTelemetry span of each request, over either protocol, like
// kube-apiserver: with the same span names, the same rule for continuing a trace, and the same
// header to the backend.
//
// The concurrency rule: a Tracer is safe for concurrent use; a Span belongs to its request. The
// provider exports spans in a goroutine of its own, with limits of its own.
//
// This package does not make or end the provider. Neither a query nor a credential becomes an
// attribute.
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
)

// Tracer starts spans.
type Tracer struct{ tracer trace.Tracer }

// New returns a Tracer that uses a provider.
func New(provider trace.TracerProvider) *Tracer {
	return &Tracer{tracer: provider.Tracer("github.com/fairlead-proxy/fairlead/proxy")}
}

// The fields of W3C Trace Context that Span.Fields sets.
const (
	parentHeader = "traceparent"
	stateHeader  = "tracestate"
)

// Carries reports whether Span.Fields sets a field, so that the client's is replaced. The name must
// be in lower case.
func Carries(name string) bool { return name == parentHeader || name == stateHeader }

// Request is the input of a span.
type Request struct {
	// Method and Path are as received. Name is the span's name.
	Method, Path, Name string
	// AuditID is the request's ID in audit logs.
	AuditID string
	// Began is when the request's head arrived.
	Began time.Time
	// Fields are the header fields, with names in lower case. They are only read during the call.
	Fields []hpack.HeaderField
	// Trusted says that the caller's trace is continued. If false, a new trace is started, with a
	// link to the caller's.
	Trusted bool
}

// Span is one request's span.
type Span struct {
	span  trace.Span
	began time.Time
	seen  bool // the response head was recorded
}

// Start begins a span.
func (t *Tracer) Start(r *Request) *Span {
	ctx := context.Background()
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(r.Began)}
	received := propagation.MapCarrier{}
	for _, f := range slices.Backward(r.Fields) { // the first of several counts
		if Carries(f.Name) {
			received[f.Name] = f.Value
		}
	}
	if from := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(ctx, received)); from.IsValid() {
		if r.Trusted {
			ctx = trace.ContextWithRemoteSpanContext(ctx, from)
		} else {
			options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: from}))
		}
	}
	_, span := t.tracer.Start(ctx, text(r.Name), options...)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("http.request.method", text(r.Method)), attribute.String("url.path", text(r.Path)), attribute.String("audit-id", text(r.AuditID)))
	}
	return &Span{span: span, began: r.Began}
}

// maxText limits each text that a client chooses: the exporter's queue has 2,048 spans, and is full
// while the collector is down.
const maxText = 1 << 10

// text returns a client's text as a span may have it: its first maxText bytes, without keeping the
// whole one in memory, and in UTF-8, because one other byte would make the exporter lose a batch.
func text(s string) string {
	if len(s) > maxText {
		s = strings.Clone(s[:maxText])
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Fields appends the trace context for the next hop.
func (s *Span) Fields(set []hpack.HeaderField) []hpack.HeaderField {
	out := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), s.span.SpanContext()), out)
	for _, name := range []string{parentHeader, stateHeader} {
		if value := out[name]; value != "" {
			// Sensitive keeps fields that differ in each request out of HPACK's tables.
			set = append(set, hpack.HeaderField{Name: name, Value: value, Sensitive: true})
		}
	}
	return set
}

// Header is Fields for a net/http header. It replaces the client's fields.
func (s *Span) Header(h http.Header) {
	h.Del(parentHeader)
	h.Del(stateHeader)
	for _, f := range s.Fields(nil) {
		h.Set(f.Name, f.Value)
	}
}

// Responded records the time of the response head.
func (s *Span) Responded(status int) {
	if s.seen || !s.span.IsRecording() {
		return
	}
	s.seen = true
	s.span.AddEvent("response head", trace.WithAttributes(attribute.Int("http.response.status_code", status)))
}

// Outcome says how a request ended.
type Outcome struct {
	// Status is the client's status.
	Status int
	// Err says briefly what went wrong. Empty means nothing did.
	Err string
	// Verb is Kubernetes' verb.
	Verb string
	// APIService is the APIService of the path. Empty means none.
	APIService string
	// Endpoint is the last endpoint tried. Empty means none or unknown.
	Endpoint string
	// Retries is the number of tries after the first.
	Retries int
	// Wait is from the head's arrival to the response head. Zero means that there was none, or that
	// Responded has recorded it.
	Wait time.Duration
	// Took is from the head's arrival to the end.
	Took time.Duration
}

// End ends the span.
func (s *Span) End(o *Outcome) {
	end := s.began.Add(o.Took)
	if s.span.IsRecording() {
		if o.Wait > 0 && !s.seen {
			s.span.AddEvent("response head", trace.WithTimestamp(s.began.Add(o.Wait)), trace.WithAttributes(attribute.Int("http.response.status_code", o.Status)))
		}
		s.span.SetAttributes(attribute.Int("http.response.status_code", o.Status), attribute.String("k8s.verb", text(o.Verb)))
		for key, value := range map[string]string{"fairlead.apiservice": o.APIService, "fairlead.endpoint": o.Endpoint} {
			if value != "" {
				s.span.SetAttributes(attribute.String(key, value))
			}
		}
		if o.Retries > 0 {
			s.span.SetAttributes(attribute.Int("fairlead.retries", o.Retries))
		}
		// As in OpenTelemetry's conventions for servers, a client's error is no error of the span.
		if o.Status >= http.StatusInternalServerError {
			s.span.SetStatus(codes.Error, text(o.Err))
		}
	}
	s.span.End(trace.WithTimestamp(end))
}
