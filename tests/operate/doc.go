// Package operate shows what operators use on the real thing: the shipped manifests, roles and alerts, the status page in a real browser, and the commands that explain
// what is broken. One cluster is shared by all cases; each has group-versions of its own.
//
// It is behind the build tag e2e. It needs chromium, prometheus and promtool, which `make e2e` installs.
package operate
