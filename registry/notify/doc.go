// Package notify signals that something in directories may have changed, for readers of files. It
// signals when the kernel reports events, once they have stopped, and every minute, because network
// file systems report nothing.
//
// Concurrency: Run's goroutine waits for events. Meanwhile one goroutine may call Watch. Watch
// before reading: a change in between is then seen twice, never missed.
//
// This package reads no files, and does not know which directories matter.
package notify
