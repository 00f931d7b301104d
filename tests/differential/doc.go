// Package differential compares Fairlead with kube-apiserver: both run side by side over the same
// backends, get the same requests, and must give the same answers, byte for byte. They have the
// build tag e2e.
//
// Tests of clients are in tests/e2e.
package differential
