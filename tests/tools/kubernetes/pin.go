//go:build pin

// Package kubernetes exists so that `go mod tidy` keeps what the e2e.test part needs.
package kubernetes

import _ "k8s.io/kubernetes/test/e2e"
