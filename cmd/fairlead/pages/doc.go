// Package pages serves what Fairlead shows about itself: the status page, the same as JSON, the
// explanation of a path, and the stream of changes. It is served on the admin port and below
// /fairlead/ on the front door, behind authorization on both.
//
// Each response is made from the current table; only the last transitions and latencies are stored.
// All methods of Pages may be called concurrently.
//
// The package decides nothing: the proxy says where a path leads, the registry whether a backend is
// healthy.
package pages
