// Package managed follows docs/managed.md on a real cluster as a cloud runs it: its kube-apiserver
// has no --requestheader flag, Fairlead has the account, the arguments and the Secrets that
// deploy/overlays/managed and kubectl fairlead init make, and a sample extension server trusts
// Fairlead's own CA alone. What the kubelet does, runs the pods, is done by the tests. One cluster
// is shared by all cases.
//
// It is behind the build tag e2e. That everything else holds there, too, is shown by the lane
// impersonate of tests/e2e.
package managed
