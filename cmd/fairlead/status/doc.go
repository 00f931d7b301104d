// Package status writes this cluster's verdicts where users look: the condition
// fairlead.dev/Available of each remote APIService, and Events when one changes.
//
// kube-apiserver's own controllers own the condition Available and cannot be switched off, so it is
// never written here. Of all replicas one writes, elected by a Lease: kube-aggregator lets every
// replica write the same object, and replicas that see the network differently fight
// (kubernetes/kubernetes#81504, #64698). What is written is the leader's own verdict.
//
// The concurrency rule: everything happens on Run's goroutine and, while this replica leads, on one
// more that Run waits for. No lock is held.
//
// What this package is not: it takes no part in deciding a verdict, and nothing reads the condition
// back to route by it.
package status
