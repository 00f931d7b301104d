// Package entrypoint runs a cluster whose own clients reach it through Fairlead: kube-apiserver publishes nothing
// (--endpoint-reconciler-type=none), two Fairleads with the shipped roles publish themselves, and a client with a pod's
// configuration and kube-controller-manager use the cluster address. Kube-apiservers that publish themselves are
// followed, and a cluster without IPv4 is served.
//
// It needs the build tag e2e, and root for its own network namespace: Kubernetes refuses loopback
// addresses as endpoints.
package entrypoint
