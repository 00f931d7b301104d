// Package entrypoint makes Fairlead the server that clients inside the cluster reach: it publishes
// the ready replicas as the Endpoints and EndpointSlices of the Service default/kubernetes.
// kube-apiserver must leave those alone (--endpoint-reconciler-type=none).
//
// Each replica keeps a Lease in kube-system while it is ready, and publishes the addresses of all
// live Leases. A replica's address disappears at once when it drains, and when its Lease expires
// after it has died. A replica judges whether a Lease is live by when it saw the Lease change, not
// by the clock of the Lease's holder. What is published carries an annotation that repeats it. If
// the two differ, another writer has been there; a writer that persists is given way to.
//
// The concurrency rule: everything happens on Run's goroutine. Others only leave it a note
// (Withdraw). No lock is held.
//
// What this package is not: it decides nothing about readiness, and it makes no Service.
package entrypoint
