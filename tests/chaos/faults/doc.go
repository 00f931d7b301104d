// Package faults verifies design.md's limits in seconds when things break: backends that die or hang, hosts whose
// packets are lost, a Fairlead that gets SIGTERM; and the status that Fairlead writes. Everything is real: etcd,
// kube-apiserver, Fairlead, extension servers, sockets.
//
// The tests need the build tag e2e and root: they run in their own network namespace, which the
// kernel removes with the process. It has addresses for endpoints that are not on loopback, which
// Kubernetes would refuse, and hosts whose packets can be dropped without effects elsewhere.
package faults
