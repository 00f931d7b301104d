// Package notify tells when something in directories may have changed, for those who follow files: by what the kernel reports, once it is quiet again, and once a
// minute, because network file systems report nothing.
//
// The concurrency rule: Run's goroutine waits for events; Watch may be called meanwhile, by one goroutine. Watch before reading: then a change in between is seen
// twice, never missed.
//
// What this package is not: it reads no file, and does not know which directories matter.
package notify
