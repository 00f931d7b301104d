// Package status writes verdicts where users look: the condition fairlead.dev/Available of each
// remote APIService, and Events when a verdict changes.
//
// kube-apiserver's own controllers own the condition Available and cannot be switched off. This
// package writes Available only where they do not run: if APIServices are in an etcd of our own.
// Only one replica writes, elected by a Lease: kube-aggregator lets every replica write the same
// object, and replicas that see the network differently fight (kubernetes/kubernetes#81504,
// #64698). The leader writes its own verdicts.
//
// Everything happens on Run's goroutine and, while this replica leads, on one more that Run waits
// for. Package status decides no verdict, and nothing reads the condition back to route by it.
package status
