// Package backend knows the endpoints of extension servers and of the local apiserver: which to choose, how to dial them, how much they may be asked.
//
// An Upstream is one set of endpoints under one trust: an APIService's backend (Pools), or one of the pools of the local apiserver (Local). Over HTTP/2 requests
// are forwarded by the engine of proxy/h2, which asks for the choice and the dialling (Plan) and owns its connections itself. Over HTTP/1.1 they are
// forwarded here (RoundTrip), by an http.Transport for each endpoint.
//
// The concurrency rule: what a request reads to choose an endpoint (a view) is immutable and is swapped as a whole; no mutex is held over I/O. What watches over
// connections ends with the Run of the Pools or the Local.
//
// What this package is not: it does not decide where a request goes, changes none of its header fields, writes no response, and does not probe
// (health does; it is told what live traffic has seen).
package backend
