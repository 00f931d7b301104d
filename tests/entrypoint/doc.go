// Package entrypoint runs a cluster whose own clients reach it through Fairlead: kube-apiserver
// publishes nothing (--endpoint-reconciler-type=none), two Fairleads with the shipped roles publish
// themselves, and a client with a pod's configuration and kube-controller-manager use the
// cluster address.
//
// It needs the build tag e2e, and root for its own network namespace: Kubernetes refuses loopback
// addresses as endpoints.
package entrypoint
