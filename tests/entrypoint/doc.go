// Package entrypoint runs a cluster whose own clients reach it through Fairlead: kube-apiserver
// publishes nothing (--endpoint-reconciler-type=none), two Fairleads with the shipped roles publish
// themselves, and a client with a pod's configuration, kube-controller-manager and kubectl find
// them at the cluster address.
//
// It is behind the build tag e2e, and makes a network namespace for itself, which needs root:
// Kubernetes refuses loopback addresses as endpoints.
package entrypoint
