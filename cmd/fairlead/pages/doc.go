// Package pages is what Fairlead shows of itself: the status page, its JSON twin, the explanation of a path, and the stream of changes. It is served on the admin port
// and below /fairlead/ on the front door, behind authorization in both places.
//
// Everything is made from the current table at the moment of a request: the package keeps nothing but the last transitions. All methods of Pages may be called by any
// goroutine.
//
// It decides nothing: what a path leads to is asked of the proxy, whether a backend is well of the registry.
package pages
