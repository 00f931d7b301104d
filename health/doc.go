// Package health finds out whether backend endpoints can be used, and reports whether this process
// is healthy.
//
// A Prober follows the table. One goroutine owns each target: an endpoint of a Backend, from the
// first table that names it until one no longer does. In each interval the target dials the
// endpoint once. On that connection it asks what kube-aggregator would ask for each APIService that
// claims the endpoint (round.go). A claim has its own verdict (claim.go) and reports changes; the
// registry makes verdicts of the reports. Three things make a target probe ahead of its schedule: a
// hint from live traffic (Signal), the death of the connection that the last round left open, and a
// light check on that connection that got no response. None of them ejects an endpoint. Only two
// failed probes do, each on a connection dialled for it.
//
// A table may name servers that serve no group-version: the local apiservers. They are asked for
// /readyz over HTTP/2, by the same rules.
//
// Checks, Relay and Draining are this process's own health: /livez and /readyz of the admin port
// and what load balancers see on the main port.
//
// The concurrency rule: all state of a target and its claims belongs to the target's goroutine, and
// rounds deliver their findings to it. A round's connections belong to the round until it ends.
// Other goroutines set flags of the target (atomics and a one-slot channel) and never wait for it,
// so Signal and Observe may be called on the hot path.
//
// This package keeps no second set of APIServices (only the running probes), computes no
// APIService's verdict and picks no endpoint for a request.
package health
