// Package managed follows docs/managed.md on a real cluster as clouds run it: its kube-apiserver has no --requestheader
// flag, Fairlead has the account, arguments and Secrets that deploy/overlays/managed and kubectl fairlead init make,
// and a sample extension server trusts only Fairlead's own CA. The tests run the pods' programs instead of a kubelet.
// All cases share one cluster.
//
// The build tag is e2e. The lane impersonate of tests/e2e shows that everything else works there, too.
package managed
