// Package faults shows what Fairlead promises when things break: backends that die, hang, lie or
// crawl, hosts whose packets vanish, an apiserver that is killed, a Fairlead that is told to stop.
// Everything is real (etcd, kube-apiserver, Fairlead, extension servers, sockets), and each case
// runs with and without HTTP/2.
//
// The tests are behind the build tag e2e and need root: they run in a network namespace of their
// own, which the kernel removes with the process. In it there is room for endpoints that are not on
// loopback (Kubernetes refuses those that are), and for hosts whose packets can be made to vanish
// without a trace anywhere else.
package faults
