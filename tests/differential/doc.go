// Package differential holds Fairlead to kube-apiserver: both run side by side over the same
// backends, are asked the same questions, and must give the same answers, byte for byte. Where
// Fairlead is meant to be better, because a backend is dead or hangs, its tests show by how much.
// They have the build tag e2e.
//
// What it is not: a test of clients; those are in tests/e2e.
package differential
