// Package documents asks the backends of the table for documents: one goroutine per backend, which asks at once when its backend is new, has changed or has
// recovered, and otherwise from time to time; the local apiserver is asked when something hints at a change. registry/documents/discovery and registry/documents/openapi both stand on it.
//
// The concurrency rule: a Set is driven by one loop, its owner's, which also reads what has been found out; what a backend's goroutine finds out it hands over as
// an immutable value. No goroutine waits for another one's backend, so a hung backend delays only itself.
//
// What this package is not: it knows nothing of the documents that are asked for.
package documents
