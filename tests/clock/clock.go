// Package clock finds out when the machine stood still, so that what was late then can be told from
// what was late by itself.
package clock

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// beat is how long a Clock sleeps, again and again.
	beat = 50 * time.Millisecond
	// standstill is how much later it must wake for the machine to have stood still: a busy
	// scheduler is late by some 10 ms, a busy collector by less.
	standstill = 250 * time.Millisecond
	// aftermath is how long it may take until a standstill is felt: as long as an answer to a ping
	// or a probe may take.
	aftermath = 5 * time.Second
	// leastStill is how long the machine must have stood still to excuse anything; and at least a
	// quarter of the time in which something was late must have been lost, since nobody is late by
	// accident who had three quarters of it.
	leastStill = time.Second
)

// Clock notes when the machine stood still: when this process, though it only wanted to sleep, got
// no turn. The zero value has seen nothing yet. It says nothing about others that get no turn. Its
// methods may be called at any time from any goroutine.
type Clock struct {
	// Tell is told of each standstill. Nil: nobody is.
	Tell func(time.Duration)
	// Sleep is what Run does, for tests. Nil: time.Sleep.
	Sleep func(time.Duration)

	mu   sync.Mutex // guards what follows
	due  time.Time  // when it wants to wake next. Zero: it does not run
	gaps []gap
}

type gap struct{ from, to time.Time }

// Run finds out when the machine stands still, until ctx ends.
func (k *Clock) Run(ctx context.Context) {
	sleep := k.Sleep
	if sleep == nil {
		sleep = time.Sleep //nolint:forbidigo // how long it takes is what is to be found out
	}
	for ctx.Err() == nil {
		k.mu.Lock()
		k.due = time.Now().Add(beat)
		k.mu.Unlock()
		sleep(beat)
		k.woke()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.due = time.Time{}
}

func (k *Clock) woke() {
	now := time.Now()
	k.mu.Lock()
	g := gap{k.due, now}
	still := now.Sub(k.due) >= standstill
	if still {
		k.gaps = append(k.gaps, g)
	}
	k.mu.Unlock()
	if still && k.Tell != nil {
		k.Tell(g.to.Sub(g.from))
	}
}

// Stood is how long the machine stood still between two moments, including a standstill of which
// the Clock has not woken yet.
func (k *Clock) Stood(from, to time.Time) (sum time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.gaps
	if now := time.Now(); !k.due.IsZero() && now.Sub(k.due) >= standstill {
		all = append(slices.Clip(all), gap{k.due, now})
	}
	for _, g := range all {
		if g.from.Before(from) {
			g.from = from
		}
		if g.to.After(to) {
			g.to = to
		}
		sum += max(g.to.Sub(g.from), 0)
	}
	return sum
}

// Excuses says how long the machine stood still while something took its time, or right before.
// Zero: not long enough to be its cause.
func (k *Clock) Excuses(from, to time.Time) time.Duration {
	from = from.Add(-aftermath)
	if still := k.Stood(from, to); still >= leastStill && still >= to.Sub(from)/4 {
		return still
	}
	return 0
}

// Sum is how often and for how long the machine stood still in all, and the longest time.
func (k *Clock) Sum() (n int, all, longest time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.gaps {
		all += g.to.Sub(g.from)
		longest = max(longest, g.to.Sub(g.from))
	}
	return len(k.gaps), all, longest
}
