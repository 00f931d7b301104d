// Package directory holds the end-to-end tests of --registry=dir:PATH: kubectl with a Fairlead
// whose only registry is a directory of manifests, with real extension servers and without a
// cluster; the same in front of a real kube-apiserver; and which claims are refused.
//
// They need the build tag e2e.
package directory
