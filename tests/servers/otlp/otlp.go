// Package otlp is an OpenTelemetry collector for tests. It keeps the spans that it receives.
package otlp

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/grpc"
)

// Span holds what tests need of a received span.
type Span struct {
	// Name is the span's name. Trace, ID and Parent are in hex; the Parent of a root is empty.
	Name, Trace, ID, Parent string
	Links                   []string // the linked traces, in hex
	// Attributes are the span's own, as text. Resource has those of the process.
	Attributes, Resource map[string]string
	Events               []string // the names of the span's events, in order
	Error                string   // the message of a span that failed. Empty means no failure, or no message.
}

// Collector receives spans. Make one with Start.
type Collector struct {
	collector.UnimplementedTraceServiceServer
	Address string // host:port

	server *grpc.Server
	mu     sync.Mutex // guards spans
	spans  []Span
}

// Start listens on loopback until Close.
func Start(ctx context.Context) (*Collector, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	c := &Collector{Address: l.Addr().String(), server: grpc.NewServer()}
	collector.RegisterTraceServiceServer(c.server, c)
	go func() { _ = c.server.Serve(l) }() // ends with Close
	return c, nil
}

// Close stops the collector.
func (c *Collector) Close() { c.server.Stop() }

// Spans returns the spans that were received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Export implements the collector's only method.
func (c *Collector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range r.GetResourceSpans() {
		resource := attributes(rs.GetResource().GetAttributes())
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				span := Span{
					Name: s.GetName(), Trace: fmt.Sprintf("%x", s.GetTraceId()), ID: fmt.Sprintf("%x", s.GetSpanId()), Parent: fmt.Sprintf("%x", s.GetParentSpanId()),
					Attributes: attributes(s.GetAttributes()), Resource: resource, Error: s.GetStatus().GetMessage(),
				}
				for _, l := range s.GetLinks() {
					span.Links = append(span.Links, fmt.Sprintf("%x", l.GetTraceId()))
				}
				for _, e := range s.GetEvents() {
					span.Events = append(span.Events, e.GetName())
				}
				c.spans = append(c.spans, span)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func attributes(list []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range list {
		switch v := kv.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[kv.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			out[kv.GetKey()] = strconv.FormatInt(v.IntValue, 10)
		}
	}
	return out
}
