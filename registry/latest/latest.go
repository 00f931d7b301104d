// Package latest is the loop of the readers of a state that one writer replaces, such as a
// *registry.Table.
//
// Concurrency: the writer stores the new state where load finds it, and then closes Superseded of
// the old one. In this order, a reader that wakes up finds the new one. A state never changes.
//
// This package holds no state and starts no goroutine.
package latest

import (
	"context"
	"iter"
	"time"
)

// Of yields the state that load returns, and then the current one each time it is superseded or
// wake delivers, until ctx ends. A state that is replaced while the loop body runs is skipped. Wake
// lets the body run without a new state. Nil means that it never does.
func Of[S interface{ Superseded() <-chan struct{} }](ctx context.Context, load func() S, wake <-chan time.Time) iter.Seq[S] {
	return func(yield func(S) bool) {
		for {
			now := load()
			if !yield(now) {
				return
			}
			select {
			case <-now.Superseded():
			case <-wake:
			case <-ctx.Done():
				return
			}
		}
	}
}

// Wake puts a token into a channel of capacity one, unless it has one: the receiver processes
// everything that is pending. It never blocks.
func Wake[T any](wake chan<- T) {
	var token T
	select {
	case wake <- token:
	default:
	}
}
