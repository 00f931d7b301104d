// Package load makes HTTP/2 requests as cheaply as a Go program can, so that on a machine with few
// processors it takes little from the measured server: no goroutine per request, one write for all
// requests that may follow the answers of a read, and no copy of bodies.
//
// A Load belongs to one benchmark: Start it, take Snapshots, and Close it. Only answers with status 200 and a body of
// the expected length count as done; all others are faults, and invalidate the benchmark.
package load
