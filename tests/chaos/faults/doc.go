// Package faults verifies what must hold when one thing breaks or is replaced under load, and its limits in seconds:
// backends that die or hang, packets that are lost, a Fairlead that gets SIGTERM, every certificate and CA that
// Fairlead holds or trusts, and real extension servers that restart. Everything is real: etcd, kube-apiservers,
// Fairlead's binary, sockets; extension servers change their certificates and faults at run time.
//
// The tests need the build tag e2e and root: they run in their own network namespace, which the kernel removes with
// the process. It has addresses for endpoints that are not on loopback, which Kubernetes would refuse, and whose
// packets can be dropped.
package faults
