// Package etcd holds the end-to-end tests of --registry=etcd:URL,…: APIServices in a real etcd,
// written through real Fairleads with real kubectl. Its API is compared with kube-apiserver's own,
// each reads keys that the other has written, and its etcd is stopped, filled, killed and emptied.
//
// They need the build tag e2e.
package etcd
