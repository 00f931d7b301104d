// Package operate tests what operators use, on the real thing: the shipped manifests, roles and
// alerts, the status page in a real browser, and the commands that explain what is broken. All
// cases share one cluster, each with its own group-versions.
//
// The tutorial has a separate control plane: three nodes made by kubeadm.
//
// The build tag is e2e. It needs chromium, prometheus, promtool and haproxy, which `make operate` installs.
package operate
