//go:build pin

// Package kubernetes exists so that `go mod tidy` keeps requirements that the tool lines of go.mod do not name. A new
// tool line would change the key of every part, and so rebuild kube-apiserver everywhere.
package kubernetes

import (
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/test/e2e"
)
