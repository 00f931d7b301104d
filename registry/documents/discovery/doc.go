// Package discovery answers /api, /apis, /apis/ and /apis/<group>: what the cluster serves, merged from the table, the local apiserver's own document and those of the
// backends, in the forms, order and negotiation of kube-apiserver.
//
// Sources: a Local group-version comes from the local apiserver's document, less every version whose table entry is remote (its own aggregator lists those, too); a
// remote one only from its backend, which is asked by its own goroutine (registry/documents) and believed only about itself. A backend that fails keeps its last known
// resources, Current: client-go ignores what is Stale, and that is what makes namespaces hang. Here this differs from kube-aggregator, deliberately. It is safe: where
// a deletable resource cannot be listed, deletion waits.
//
// The concurrency rule: one goroutine, Run's, merges and renders; documents are immutable behind one atomic pointer, so a request waits for nobody. A form that few ask
// for is rendered from the document when it is first asked for, once.
//
// What this package is not: it fetches nothing on a request's path, and neither authenticates nor authorizes.
package discovery
