// Package fleet runs two kube-apiservers, with or without a Fairlead each, behind one HAProxy that copies bytes, and
// the clients of a control plane: controller manager, scheduler, twenty hollow kubelets, watches and fifty requests a
// second. It stops and replaces one server after the other, and takes three kube-apiservers to the next release and
// back: `make fleet`. It needs haproxy, and root for a network namespace.
package fleet
