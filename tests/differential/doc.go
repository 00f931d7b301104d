// Package differential compares Fairlead with kube-apiserver: both run side by side over the same
// backends, get the same requests, and must give the same answers, byte for byte. Where Fairlead is
// meant to be better, because a backend is dead or hangs, its tests measure by how much. They have
// the build tag e2e.
//
// Tests of clients are in tests/e2e.
package differential
