// Package soak runs two Fairleads before two kube-apiservers and eighteen extension servers under
// load, breaks things at random for as long as it is told, and keeps account of everything: package
// check says whether it adds up. It prints what was broken, what failed and why, and which
// invariants held; it fails when one did not, and keeps its journal and the logs of all parts then.
//
// Faults come from four tormentors (backends, registry, plane, doors), which draw what they do and
// for how many requests from the seed alone. What is drawn can be repeated; how it falls together
// with the load cannot. It needs root and Linux, for a network namespace of its own: Kubernetes
// refuses endpoints on loopback.
package soak
