// Package backend manages the endpoints of extension servers and of the local apiserver: it chooses
// endpoints, dials them and limits their requests.
//
// An Upstream is a set of endpoints with one trust: the backend of an APIService (Pools), or a pool
// of the local apiserver (Local). HTTP/2 requests are forwarded by the engine of proxy/h2, which
// owns its connections; this package chooses and dials for it (Plan). HTTP/1.1 requests are
// forwarded here (RoundTrip), with an http.Transport for each endpoint.
//
// The concurrency rule: requests choose endpoints from an immutable view, which is swapped as a
// whole. No mutex is held during I/O. The goroutines that watch connections end with the Run of the
// Pools or the Local.
//
// This package does not decide where a request goes, changes no header fields, writes no responses,
// and does not probe. It reports the failures of live traffic to health, which probes.
package backend
