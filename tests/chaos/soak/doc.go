// Package soak runs two Fairleads in front of two kube-apiservers and eighteen extension servers
// under load. It breaks things at random for the given time and records everything; a checker
// verifies the records. It prints what was broken, what failed and why, and which invariants held.
// It fails when one did not, and then keeps its journal and the logs of all processes.
//
// Faults come from four tormentors (backends, registry, plane, doors). What they do, and for how many requests, depends
// only on the seed and can be repeated; how it coincides with the load cannot. It needs root and Linux, for a network
// namespace of its own: Kubernetes refuses endpoints on loopback.
package soak
