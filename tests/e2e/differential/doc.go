// Package differential compares Fairlead with kube-apiserver: both run side by side over the same backends, get the
// same requests, and must give the same answers, byte for byte. They have the build tag e2e.
//
// TestScripts draws scripts of what clients and servers do: 100, or more by -args -scripts=2000
// -seed=2. Their language, and the differences that have a reason, are in testdata/scripts.txtar.
//
// Tests of clients are in tests/e2e.
package differential
