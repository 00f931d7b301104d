// Package documents holds what all merged documents have in common: one goroutine per backend of
// the table asks it at once when it is new, has changed or has recovered, and otherwise from time
// to time; one asks the local apiserver when something hints at a change; one publishes what they
// have found. documents/discovery and documents/openapi are its two kinds.
//
// The concurrency rule: Sources.Run's goroutine publishes. What a backend's goroutine finds out it
// leaves as an immutable value behind an atomic pointer. No goroutine waits for another one's
// backend, so a hung backend delays only itself.
//
// What this package is not: it knows nothing of the documents that are asked for.
package documents
