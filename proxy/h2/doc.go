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
