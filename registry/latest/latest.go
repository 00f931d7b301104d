// Package latest is the loop of everybody who reads a state that one writer replaces, a *registry.Table above all.
//
// The concurrency rule: the writer stores the new state where load finds it, and then closes Superseded of the old one. In this order,
// whoever wakes up finds the new one. A state itself never changes.
//
// What this package is not: it holds no state and starts no goroutine.
package latest

import (
	"context"
	"iter"
	"time"
)

// Of yields the state that load finds in place, and then, each time it is superseded or wake delivers, the one that load finds then,
// until ctx ends. A state that is replaced while the loop body runs is skipped. Wake is for what the body does without a new state; nil: nothing.
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

// Wake leaves a token in a channel with room for one, unless one is there: whoever takes it looks at everything. It never blocks.
func Wake[T any](wake chan<- T) {
	var token T
	select {
	case wake <- token:
	default:
	}
}
