// Package documents has the common part of all merged documents. One goroutine per backend of the
// table asks the backend at once when it is new, has changed or has recovered, and otherwise from
// time to time. One goroutine asks the local apiserver after hints of a change. One publishes the
// results. documents/discovery and documents/openapi are the two kinds of documents.
//
// The concurrency rule: the goroutine of Sources.Run publishes. A backend's goroutine stores its
// result as an immutable value behind an atomic pointer. No goroutine waits for another one's
// backend, so a hung backend delays only itself.
//
// This package knows nothing of the documents' content.
package documents
