// Package critical runs three control-plane nodes, each a network namespace with a kube-apiserver and a Fairlead,
// behind HAProxy that looks at /readyz. The pod network of one node comes late, and an extension server dies for all:
// which replicas are ready, and which requests fail, through Fairlead and through kube-apiserver's own aggregator.
//
// It needs the build tag e2e, root for the namespaces, iproute2 and HAProxy.
package critical
