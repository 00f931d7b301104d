// Package fleet has two kube-apiservers, each with a Fairlead or not, behind one HAProxy that
// copies bytes, and what lives on a cluster's front door: controller manager, scheduler, twenty
// hollow kubelets, watches and fifty requests a second. It stops and replaces one server after the
// other: `make fleet`. It needs root, for a network namespace of its own, and haproxy.
package fleet
