// Package discovery serves /api, /apis, /apis/ and /apis/<group>: the group-versions and resources
// of the cluster, merged from the table, the local apiserver's own document and those of the
// backends, in the forms, order and negotiation of kube-apiserver.
//
// Sources: a Local group-version comes from the local apiserver's document, but not a version whose
// table entry is remote (its own aggregator lists those, too). A remote one comes only from its
// backend, which has its own goroutine (registry/documents) and is believed only about its own
// group-versions. A backend that fails keeps its last known resources as Current: client-go ignores
// Stale ones, which makes namespaces hang. In this it deliberately differs from kube-aggregator. It
// is safe: where a deletable resource cannot be listed, deletion waits.
//
// The concurrency rule: one goroutine, Run's, merges and renders. Documents are immutable behind
// one atomic pointer, so a request waits for nothing. A rarely used form is rendered from the
// document once, on first request.
//
// This package fetches nothing while serving a request, and neither authenticates nor authorizes.
package discovery
