// Package directory holds the end-to-end tests of --registry=dir:PATH: kubectl against a front door
// whose only source is a folder of manifests, with real extension servers and no Kubernetes
// anywhere; the same with a real kube-apiserver behind it; and what no APIService may claim.
//
// They need the build tag e2e.
package directory
