// Package tracing makes an OpenTelemetry span of a request, over either protocol, as kube-apiserver does: the same span names, the same rule for whose trace is
// continued, the same header toward the backend.
//
// The one rule of concurrency: a Tracer may be used by any goroutine; a Span belongs to its request. Exporting is the provider's, in its own goroutine, with
// its own bound.
//
// What this package is not: it does not make the provider and does not end it. Neither a query nor a credential becomes an attribute.
package tracing

import (
	"context"
	"net/http"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/http2/hpack"
)

// Tracer begins spans.
type Tracer struct{ tracer trace.Tracer }

// New returns a Tracer whose spans go to a provider.
func New(provider trace.TracerProvider) *Tracer {
	return &Tracer{tracer: provider.Tracer("github.com/fairlead-proxy/fairlead/proxy")}
}

// The fields of W3C Trace Context that Span.Fields sets.
const (
	parentHeader = "traceparent"
	stateHeader  = "tracestate"
)

// Carries reports whether a lower-case name is one of the fields that Span.Fields sets: the client's own are replaced.
func Carries(name string) bool { return name == parentHeader || name == stateHeader }

// Request is what a span is made of.
type Request struct {
	// Method and Path are as received. Name is the span's.
	Method, Path, Name string
	// AuditID leads to the audit logs. Empty: the request has none.
	AuditID string
	// Began is when the head had arrived.
	Began time.Time
	// Fields are the header fields, lower-case names. They are read during the call only.
	Fields []hpack.HeaderField
	// Trusted callers' traces are continued. False: a new trace is begun, with a link to the caller's.
	Trusted bool
}

// Span is one request's span.
type Span struct {
	span  trace.Span
	began time.Time
	seen  bool // the response head
}

// Start begins a span.
func (t *Tracer) Start(r *Request) *Span {
	ctx := context.Background()
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(r.Began)}
	received := propagation.MapCarrier{}
	for _, f := range slices.Backward(r.Fields) { // of several the first counts
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
	_, span := t.tracer.Start(ctx, r.Name, options...)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("http.request.method", r.Method), attribute.String("url.path", r.Path))
		if r.AuditID != "" {
			span.SetAttributes(attribute.String("audit-id", r.AuditID))
		}
	}
	return &Span{span: span, began: r.Began}
}

// Fields appends the fields that tell the next hop of this span.
func (s *Span) Fields(set []hpack.HeaderField) []hpack.HeaderField {
	out := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), s.span.SpanContext()), out)
	for _, name := range []string{parentHeader, stateHeader} {
		if value := out[name]; value != "" {
			// Sensitive keeps what differs with each request out of the tables of HPACK.
			set = append(set, hpack.HeaderField{Name: name, Value: value, Sensitive: true})
		}
	}
	return set
}

// Header puts the same fields into the header of net/http's kind, in the place of the client's.
func (s *Span) Header(h http.Header) {
	h.Del(parentHeader)
	h.Del(stateHeader)
	for _, f := range s.Fields(nil) {
		h.Set(f.Name, f.Value)
	}
}

// Responded notes when the response head was there.
func (s *Span) Responded(status int) {
	if s.seen || !s.span.IsRecording() {
		return
	}
	s.seen = true
	s.span.AddEvent("response head", trace.WithAttributes(attribute.Int("http.response.status_code", status)))
}

// Outcome is how a request ended.
type Outcome struct {
	// Status is what the client got.
	Status int
	// Err is what went wrong, in few words. Empty: nothing did.
	Err string
	// Verb is Kubernetes' verb.
	Verb string
	// APIService is the one that the path belongs to. Empty: none.
	APIService string
	// Endpoint is the one that was asked last. Empty: none, or it is not known.
	Endpoint string
	// Retries is how many tries there were beyond the first.
	Retries int
	// Wait is from the head's arrival to the response head. Zero: there was none, or Responded has seen it.
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
		s.span.SetAttributes(attribute.Int("http.response.status_code", o.Status), attribute.String("k8s.verb", o.Verb))
		for key, value := range map[string]string{"fairlead.apiservice": o.APIService, "fairlead.endpoint": o.Endpoint} {
			if value != "" {
				s.span.SetAttributes(attribute.String(key, value))
			}
		}
		if o.Retries > 0 {
			s.span.SetAttributes(attribute.Int("fairlead.retries", o.Retries))
		}
		// As OpenTelemetry's conventions for servers have it: what the client did wrong is no error of ours.
		if o.Status >= http.StatusInternalServerError {
			s.span.SetStatus(codes.Error, o.Err)
		}
	}
	s.span.End(trace.WithTimestamp(end))
}
