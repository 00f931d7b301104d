// Package latest is the loop of the readers of a state that one writer replaces, such as a *registry.Table.
//
// Concurrency: the writer stores the new state where load finds it, and then closes Superseded of
// the old one. In this order, a reader that wakes up finds the new one. A state never changes.
//
// This package holds no state and starts no goroutine. Wake, Sleep and Earlier are for all loops.
package latest

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"
)

// Tables has the current table: of a *registry.Registry, a *registry.Table. It is never nil.
type Tables[T any] interface{ Table() T }

// Of yields the state that load returns, and then the current one each time it is superseded or wake delivers, until
// ctx ends. A state that is replaced while the loop body runs is skipped. A nil wake never delivers.
func Of[S interface{ Superseded() <-chan struct{} }](ctx context.Context,
	load func() S, wake <-chan time.Time) iter.Seq[S] {
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

// Wake puts a token into a channel of capacity one, unless it has one, for all that is pending. It never blocks.
func Wake[T any](wake chan<- T) {
	var token T
	select {
	case wake <- token:
	default:
	}
}

// Sleep waits for d. It reports false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Earlier returns the earlier of two times, when something is due. Zero means that nothing is.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// window is how many adjacent entries may have been added or removed before Diff matches the others by key.
const window = 64

// Element is an element of a state. Unchanged ones are the same pointers, and keys are unique.
type Element interface {
	comparable
	Key() string // identifies an element in successive states
}

// Change is an element that differs between two states.
type Change[E Element] struct {
	Old, New E // Old is nil if the element is new, and New is nil if it is gone
}

// Key returns the key of the element.
func (c Change[E]) Key() string { return cmp.Or(c.New, c.Old).Key() }

// State is a state of elements, such as a *registry.Table.
type State[E Element] interface {
	Servers() []E
	// Superseded returns a channel that is closed once a newer one is in place. Nil means never.
	Superseded() <-chan struct{}
}

// Changes is like Of, and yields with each state its changes since the one yielded before: at first everything.
func Changes[S State[E], E Element](ctx context.Context,
	load func() S, wake <-chan time.Time) iter.Seq2[S, []Change[E]] {
	return func(yield func(S, []Change[E]) bool) {
		var last []E
		for now := range Of(ctx, load, wake) {
			changes := Diff(last, now.Servers())
			if last = now.Servers(); !yield(now, changes) {
				return
			}
		}
	}
}

// Diff compares the elements of two states. Readers of a state then process only the changes: comparing ten thousand
// pointers costs some 40 µs, processing each many times that. States need not be successive.
func Diff[E Element](old, now []E) []Change[E] {
	var none E
	var out []Change[E]
	var gone, come []E // elements found in one list only so far
	for i, j := 0, 0; ; {
		for i < len(old) && j < len(now) && old[i] == now[j] {
			i, j = i+1, j+1
		}
		if i == len(old) || j == len(now) {
			gone, come = append(gone, old[i:]...), append(come, now[j:]...)
			break
		}
		if old[i].Key() == now[j].Key() {
			out = append(out, Change[E]{old[i], now[j]})
			i, j = i+1, j+1
			continue
		}
		// Some were added or removed here. Moves beyond the window are matched by key below.
		more := slices.Index(now[j:min(j+window, len(now))], old[i])
		fewer := slices.Index(old[i:min(i+window, len(old))], now[j])
		if more < 0 && fewer < 0 {
			more, fewer = 1, 1
		}
		more, fewer = max(more, 0), max(fewer, 0)
		gone, come = append(gone, old[i:i+fewer]...), append(come, now[j:j+more]...)
		i, j = i+fewer, j+more
	}
	moved := make(map[string]E, len(gone))
	for _, e := range gone {
		moved[e.Key()] = e
	}
	for _, e := range come {
		if moved[e.Key()] != e {
			out = append(out, Change[E]{moved[e.Key()], e})
		}
		delete(moved, e.Key())
	}
	for _, e := range moved {
		out = append(out, Change[E]{e, none})
	}
	return out
}
