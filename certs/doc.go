// Package certs holds the certificates of this process and those that it trusts its clients by, each following its source.
//
// A Store has three sides. TLS is the server's: the serving pair and the SNI pairs, and the CAs that clients are asked for. Clients verifies what clients present: against the
// client CA (then the leaf is a user) and against the
// request-header CA (then the peer is a front proxy that may assert X-Remote-*). ProxyClient is the pair that this
// process presents to the local apiserver and to backends. Whom to trust as a backend is decided by the child package trust.
//
// Every source is read the same way: parse all of it, check it, then swap; on any error the last good value stays, and log, metric and Status say so. The one exception is
// the cluster's authentication ConfigMap, whose deletion ends the trust that came from it.
//
// The concurrency rule: what is in force is an immutable value behind an atomic pointer, so a handshake or a request never waits for a reload. Store.Run owns every goroutine;
// before Run everything is as New read it.
//
// What this package is not: it authenticates nobody (proxy/authn does, and keeps what Clients found once per connection and Generation), and it reads objects only through Config.Watch.
package certs
