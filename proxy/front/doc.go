// Package front serves clients on a port: it accepts connections up to a share of the file
// descriptors, serves HTTP/1.1, passes HTTP/2 connections to the engine (proxy/h2), and ends both
// when the port is drained.
//
// The concurrency rule: a Listener and a Port are safe for concurrent use. The goroutines of a
// connection are net/http's or the engine's.
//
// This package does not look at what a request asks for, and decides nothing about it.
package front
