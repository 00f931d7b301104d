// Package konnectivity puts konnectivity's own proxy server and agent (sigs.k8s.io/apiserver-network-proxy) between an
// extension server and both Fairlead and kube-apiserver's aggregator, which have no other way to it:
// `make konnectivity`.
//
// The build tag is e2e. It needs root, Linux and iproute2.
package konnectivity
