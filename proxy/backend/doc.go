// Package backend carries requests to extension servers and to the local apiserver: choice of an endpoint, connections, retry, limits.
//
// An Upstream is one set of endpoints under one trust: an APIService's backend (Pools), or one of the three pools of the local apiserver (Local). Each of its
// endpoints has a pool of connections, HTTP/2 or HTTP/1.1, which this package opens and closes; the frame lane takes only the choice (Pick) and the dialling
// (DialH2) and owns its connections itself.
//
// The concurrency rule: what a request reads to choose an endpoint (a view) is immutable and is swapped as a whole; an endpoint's connections are guarded by the
// endpoint's own mutex, which is never held over I/O. Connections are dialled and closed by goroutines of the Pools or the Local, which end with its Run; no
// request dials by itself, so that a request that gives up leaves no half-open connection behind and a thousand waiting requests make one dial.
//
// What this package is not: it does not decide where a request goes, changes none of its header fields, writes no response, and does not probe extension servers
// (health does; it is told what live traffic has seen).
package backend
