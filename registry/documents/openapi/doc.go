// Package openapi serves /openapi/v3, /openapi/v3/<path> of remote group-versions, and /openapi/v2:
// the schemas of the cluster, merged from the local apiserver's documents and those of the
// backends.
//
// Each backend contributes only its own group-versions, so a backend with too much, wrong or no
// content harms no other: its last good documents stay, or it is left out, and status and metrics
// say so. The v3 documents of Local group-versions come from the local apiserver itself:
// registry.Table.Match routes requests for them there.
//
// The concurrency rule: a goroutine per backend (registry/documents) and one for the local
// apiserver fetch; Run's goroutine publishes the results as immutable values. A request fetches
// nothing. Merging the v2 document takes seconds of CPU and hundreds of megabytes. So it is done
// only on request and after a change, by one request for all that wait, and only the compressed
// bytes are kept.
//
// This package neither authenticates nor authorizes, and routing never waits for it.
package openapi
