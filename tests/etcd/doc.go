// Package etcd holds the end-to-end tests of --registry=etcd:URL,…: APIServices in a real etcd,
// written through real Fairleads with real kubectl. Its API is compared with kube-apiserver's own,
// its keys are read by a real kube-apiserver and the other way round, and its etcd is killed,
// stopped, slowed, filled and spoilt.
//
// They need the build tag e2e.
package etcd
