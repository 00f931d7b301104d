// Package front is a port for clients: it accepts connections, as many as its part of the
// descriptors allows, speaks HTTP/1.1, and hands what has negotiated HTTP/2 to the engine
// (proxy/h2). It ends both when the port is drained.
//
// The concurrency rule: a Listener and a Port are safe for concurrent use. A connection's
// goroutines are net/http's or the engine's.
//
// What this package is not: it knows nothing of what is asked for, and decides nothing about a
// request.
package front
