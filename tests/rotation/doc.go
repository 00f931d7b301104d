// Package rotation replaces every certificate and CA that Fairlead holds or trusts while requests
// and watches go through it, on real parts: etcd, kube-apiserver, Fairlead's own binary, and
// extension servers that change their certificates at run time. Its tests need the build tag e2e;
// `make rotation` runs them.
//
// How it counts. Three hundred GETs a second of three kinds of identity go to the local apiserver
// and to four extension servers, most on long-lived HTTP/2 connections, one in fifteen on a
// connection of its own. A request has failed unless it is answered with 200; no client here
// retries. Ten watches are open and get events all the time. A watch that ends is cut: unless its
// backend has just lost the trust that its connection was made with, and it ends between two events
// with a clean end of the body, as when kube-apiserver's own watch timeout has passed. Such an end
// is counted, printed and held to where design allows it; nothing else is.
package rotation
