// Package proxy is the front door: it takes a request, decides where it goes and as whom, and carries it there.
//
// decide is the one decision, and proxy/h2 the one engine that forwards: frame by frame for HTTP/2 clients, as guests for those of HTTP/1.1.
// Upgrades, callers whom nobody has proven and backends that speak HTTP/1.1 only are carried by net/http; documents and pages are handlers.
//
// The concurrency rule: a Proxy is safe for concurrent use once New has returned; a decision loads one
// *registry.Table, and its request keeps to what that one says.
//
// What this package is not: it knows nothing of how APIServices are found, whether a backend is well, or where certificates come from; all that
// comes in by func fields of Config.
package proxy
