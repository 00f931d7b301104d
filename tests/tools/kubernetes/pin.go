//go:build pin

// Package kubernetes exists so that `go mod tidy` keeps what the parts need that the tool lines of
// go.mod do not name: those lines are in the key of every part, so that another one would have
// kube-apiserver built anew everywhere.
package kubernetes

import (
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/test/e2e"
)
