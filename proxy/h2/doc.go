// Package h2 forwards HTTP/2 requests from clients to HTTP/2 backends frame by frame.
//
// It has three rooms. Package wire reads and writes frames, field blocks and heads. Package engine is a pure
// state machine: bytes of a connection go in, bytes for connections come out. This package drives engines. A
// shard (shard.go) puts one under one mutex and moves what it produces; links (link.go) read and write the TLS
// connections, on Linux from one goroutine per shard (loop_linux.go), elsewhere from one per connection. Server
// takes connections over from an http.Server and says what the outside must provide: Config.Decide and Config.Dial.
//
// The one concurrency rule: everything of an engine (its connections, streams and pools) is touched only under its shard's mutex, and
// nothing is ever waited for while that mutex is held.
//
// It is not an HTTP/1.1 proxy, does not upgrade, does not push, does not offer extended CONNECT (RFC 8441) and ignores priorities
// (RFC 9113 §5.3.2). What is not plain forwarding is answered by an http.Handler (Plan.Serve) on its own goroutine.
package h2
