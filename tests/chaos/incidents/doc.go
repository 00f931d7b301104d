// Package incidents breaks one thing at a time around the real binary, as an operator finds it. A row passes if the
// first command that he tries names the true cause, or leads to it, if the shipped alerts fire for it within their time
// and no others do, and if all is well again after the mend.
//
// Rows share one cluster, in a network and a mount namespace of their own. Each has Fairleads with
// a ServiceAccount of their own, so that rights can be taken from them alone.
//
// The build tag is e2e. It needs root, Linux, iproute2, prlimit and promtool.
package incidents
