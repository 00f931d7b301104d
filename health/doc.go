// Package health finds out whether backend endpoints can be used, and says whether this process can.
//
// A Prober follows the table. One goroutine owns each target: an endpoint of a Backend, from the table that names it to the first one that does not. In each interval it
// dials the endpoint once, and asks there what kube-aggregator would ask for each APIService that claims it (round.go). A claim has a verdict of its own (claim.go), and
// reports what changed; the registry makes verdicts of the reports. Three things make a target ask sooner than its schedule says: a hint from live traffic (Signal), the death
// of the connection that the last round left open, and a light check on that connection that got no answer. None of them ejects an endpoint; only two failed probes do, each on
// a connection dialled for it.
//
// A table may name servers that serve no group-version: the local apiservers, which are asked for /readyz over HTTP/2, and follow the same rules.
//
// Checks, Relay and Draining are this process's own health: /livez and /readyz of the admin port and what load balancers see on the main port.
//
// The concurrency rule: all state of a target and its claims belongs to its goroutine, which rounds give their findings to; a round's connections are its own until its end. Others
// leave the target notes (atomics and a one-slot channel) and never wait for it, so Signal and Observe may be called on the hot path.
//
// What this package is not: it keeps no second set of APIServices (only the probes that run), computes no APIService's verdict and picks no
// endpoint for a request.
package health
