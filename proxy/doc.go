// Package proxy is the front door. For each request it decides where the request goes and as which
// user, and then carries the request there.
//
// decide makes all decisions, and the engine in proxy/h2 forwards: frame by frame for HTTP/2
// clients, as guests for HTTP/1.1 clients. net/http carries upgrades, requests over the unproven
// pool and requests to backends that speak only HTTP/1.1. Handlers answer documents and pages.
//
// The concurrency rule: a Proxy is safe for concurrent use once New has returned. A decision loads
// one *registry.Table, and its request uses only that table.
//
// This package does not know how APIServices are found, whether a backend is healthy, or where
// certificates come from. Func fields of Config provide all that.
package proxy
