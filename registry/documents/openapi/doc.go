// Package openapi answers /openapi/v3, /openapi/v3/<path> of remote group-versions, and /openapi/v2: what the cluster's types look like, merged from the local
// apiserver's documents and those of the backends.
//
// Each backend contributes only its own group-versions, so a backend that says too much, the wrong thing or nothing harms nobody else: its last good documents stay, or it
// is left out, and status and metrics say so. The v3 documents of Local group-versions are the local apiserver's own affair: registry.Table.Match leaves them to it.
//
// The concurrency rule: a goroutine per backend (registry/documents) and one for the local apiserver fetch; Run's goroutine publishes what they found as immutable values. A
// request fetches nothing. The v2 document takes seconds of CPU and hundreds of megabytes to merge, so that is done when somebody asks for it and something has
// changed, by one request for all that wait, and only its compressed bytes are kept.
//
// What this package is not: it neither authenticates nor authorizes, and routing never waits for it.
package openapi
