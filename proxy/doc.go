// Package proxy is the front door: it takes a request, decides where it goes and as whom, and carries it there.
//
// decide is the one decision, shared by two lanes: the frame lane (proxy/h2: HTTP/2 client to HTTP/2 backend, nothing to rewrite but
// header fields) and the net/http lane (HTTP/1.1, upgrades, documents and pages of our own, everything odd). Both must behave the same.
//
// The concurrency rule: a Proxy is safe for concurrent use once New has returned; each request loads one *registry.Table and keeps to it.
//
// What this package is not: it knows nothing of how APIServices are found, whether a backend is well, or where certificates come from; all that
// comes in by func fields of Config.
package proxy
