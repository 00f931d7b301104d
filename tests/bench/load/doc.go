// Package load makes HTTP/2 requests as cheaply as a Go program can, so that on a machine with few
// processors it takes little from the server that is measured: no goroutine per request, one write
// for all requests that answers have made room for, and no copy of bodies.
//
// A Load belongs to one benchmark: Start it, take Snapshots, and Close it. It counts only answers
// with status 200 and a body of the expected length as done; anything else is a fault, and a
// benchmark with faults is worth nothing.
package load
