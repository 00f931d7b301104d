// Package operate shows what operators use on the real thing: the shipped manifests, roles and
// alerts, the status page in a real browser, and the commands that explain what is broken. One
// cluster is shared by all cases; each has group-versions of its own.
//
// The tutorial has a control plane of its own, of three nodes that kubeadm made.
//
// It is behind the build tag e2e. It needs chromium, prometheus, promtool and haproxy, which `make
// operate` installs.
package operate
