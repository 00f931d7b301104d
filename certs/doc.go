// Package certs holds the certificates of this process, and the CAs by which it verifies its
// clients. Each follows its source.
//
// A Store has three sides. TLS is the server's: the serving pair, the SNI pairs, and the CAs that
// the server names to clients. Clients verifies the certificates of clients: against the client CA
// (then the leaf is a user) and against the request-header CA (then the peer is a front proxy that
// may assert X-Remote-*). ProxyClient is the pair that this process presents to the local apiserver
// and to backends. The child package trust verifies backends.
//
// Every source is read in the same way: parse all of it, check it, then swap. After an error the
// last good value stays, and log, metric and Status say so. The one exception is the cluster's
// authentication ConfigMap: its deletion ends the trust that came from it.
//
// The concurrency rule: the values in force are immutable, behind an atomic pointer, so a handshake
// or a request never waits for a reload. Store.Run owns every goroutine. Before Run everything is
// as New read it.
//
// This package authenticates nobody (proxy/authn does, and caches what Clients returned per
// connection and Generation). It reads objects only through Config.Watch.
package certs
