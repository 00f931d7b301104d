// Package entrypoint makes Fairlead the server that clients inside the cluster reach: it publishes
// the ready replicas as the Endpoints and EndpointSlices of the Service default/kubernetes.
// kube-apiserver must leave those alone (--endpoint-reconciler-type=none).
//
// Each replica keeps a Lease in kube-system while it is ready, and publishes the addresses of all
// live Leases. A replica's address disappears at once when it drains, and when its Lease expires
// after it has died. A replica judges whether a Lease is live by when it saw the Lease change, not
// by the clock of the Lease's holder. Published objects carry an annotation that repeats their
// content. If the two differ, another writer has changed the object; Fairlead gives way to a writer
// that persists.
//
// Everything happens on Run's goroutine; Withdraw only leaves it a note. There is no lock.
//
// This package does not decide readiness, and does not create the Service.
package entrypoint
