// Package h2 forwards HTTP/2 requests from clients to HTTP/2 backends frame by frame.
//
// It has three parts. Package wire reads and writes frames, field blocks and heads. Package engine
// is a pure state machine: bytes from a connection go in, bytes for connections come out. This
// package drives engines. A shard (shard.go) guards one engine with one mutex and moves its output.
// Links (link.go) read and write the TLS connections: on Linux from one goroutine per shard
// (loop_linux.go), elsewhere from one per connection. Server takes connections over from an
// http.Server; its caller provides Config.Decide and Config.Dial.
//
// The one concurrency rule: everything in an engine (its connections, streams and pools) is only
// touched under its shard's mutex, and nothing blocks while that mutex is held.
//
// It is not an HTTP/1.1 proxy, does not upgrade or push, does not offer extended CONNECT (RFC 8441)
// and ignores priorities (RFC 9113 §5.3.2). Requests that are not forwarded are answered by an
// http.Handler (Plan.Serve) on its own goroutine.
package h2

import (
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

type (
	// Head is the head of a client's request.
	Head = wire.Head
	// Plan says how a request is answered.
	Plan = engine.Plan
	// Answer is a prepared response.
	Answer = engine.Answer
	// Upstream chooses the endpoints of a backend.
	Upstream = engine.Upstream
	// Endpoint is one address of a backend.
	Endpoint = engine.Endpoint
	// GoAway is a backend's GOAWAY that has an error code.
	GoAway = engine.GoAway
	// Outcome is how a request has ended.
	Outcome = engine.Outcome
	// Reason says why a request ended without a complete response, see engine.ReasonNone.
	Reason = engine.Reason
	// Failure is the error of RoundTrip, and of reading its response's body.
	Failure = engine.Failure
)
