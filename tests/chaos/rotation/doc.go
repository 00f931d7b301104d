// Package rotation replaces every certificate and CA that Fairlead holds or trusts while requests and watches pass
// through it. Everything is real: etcd, kube-apiserver, Fairlead's own binary, and extension servers that change their
// certificates at run time. Its tests need the build tag e2e; `make rotation` runs them.
//
// How it counts. Three hundred GETs a second with three kinds of identity, over HTTP/2 and HTTP/1.1, go to the local
// apiserver and to three extension servers, most on long-lived connections, one in fifteen on a new one. A request
// fails unless its status is 200; no client here retries. Eight watches are open and get events all the time. A watch
// that ends counts as cut off, with one exception: its backend has just lost the trust of its connection, and it ends
// between two events with a clean end of the body, as after kube-apiserver's own watch timeout.
package rotation
