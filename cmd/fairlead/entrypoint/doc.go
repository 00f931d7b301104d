// Package entrypoint makes Fairlead the server that clients inside the cluster reach: it publishes the replicas that are ready as the Endpoints and EndpointSlices of the
// Service default/kubernetes. kube-apiserver must leave those alone (--endpoint-reconciler-type=none).
//
// Each replica keeps a Lease in kube-system for as long as it is ready, and each makes the published addresses those of the Leases that are alive; so an entry leaves with its
// replica: at once when that drains, and when its Lease runs out after it has died. Whether a Lease is alive is judged by when this replica saw it change, not by the clock of
// whoever wrote it. What is published carries an annotation that repeats it: where both differ, somebody else has written, and who goes on doing so is given way to.
//
// The concurrency rule: everything happens on Run's goroutine. Others only leave it a note (Withdraw). No lock is held.
//
// What this package is not: it decides nothing about readiness, and it makes no Service.
package entrypoint
