// Package otlp is an OpenTelemetry collector that keeps the spans it is sent, for tests.
package otlp

import (
	"context"
	"fmt"
	"net"
	"sync"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// Span is one that was received, in few words.
type Span struct {
	// Name is the span's; Trace, ID and Parent are in hex, Parent "" for a root.
	Name, Trace, ID, Parent string
	// Links are the traces it is linked to, in hex.
	Links []string
	// Attributes are its own, as text; Resource the ones of the process.
	Attributes, Resource map[string]string
	// Events are their names, in order.
	Events []string
	// Error is the message of a span that failed. Empty: it did not, or says nothing.
	Error string
}

// Collector receives spans. Make one with Start.
type Collector struct {
	collector.UnimplementedTraceServiceServer
	// Address is where it listens.
	Address string

	server *grpc.Server
	mu     sync.Mutex // guards spans
	spans  []Span
}

// Start listens on loopback. Close ends it.
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

// Close ends it.
func (c *Collector) Close() { c.server.Stop() }

// Spans are those that were received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Export is the collector's one method.
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
