// Package clock detects when the machine stood still, so that tests can distinguish its delays from
// those of the program.
package clock

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	beat = 50 * time.Millisecond // how long a Clock sleeps at a time
	// standstill is how much later it must wake for the machine to have stood still: a busy
	// scheduler is late by some 10 ms, a busy collector by less.
	standstill = 250 * time.Millisecond
	aftermath  = 5 * time.Second // how long a standstill has effects: as long as a ping or a probe may take
	// leastStill is the shortest standstill that excuses a delay. It must also last for a quarter
	// of the operation: with three quarters of its time left, an operation is late by itself.
	leastStill = time.Second
)

// Clock records standstills: times when this process overslept by at least standstill. It does not notice when only
// other processes were stopped. The zero value is ready for Run. Any goroutine may call its methods.
type Clock struct {
	// Tell is called for each standstill. Nil means never.
	Tell func(time.Duration)
	// Sleep replaces time.Sleep, for tests. Nil means time.Sleep.
	Sleep func(time.Duration)

	mu   sync.Mutex // guards the fields below
	due  time.Time  // the next wakeup. Zero while Run is not running
	gaps []gap
}

type gap struct{ from, to time.Time }

// Run detects standstills until ctx ends.
func (k *Clock) Run(ctx context.Context) {
	sleep := k.Sleep
	if sleep == nil {
		sleep = time.Sleep //nolint:forbidigo // its duration is what is measured
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

// Stood returns how long the machine stood still between two moments, including a standstill that has not ended yet.
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

// Excuses returns how long the machine stood still during an operation or right before it. Zero
// means too short to have delayed it.
func (k *Clock) Excuses(from, to time.Time) time.Duration {
	from = from.Add(-aftermath)
	if still := k.Stood(from, to); still >= leastStill && still >= to.Sub(from)/4 {
		return still
	}
	return 0
}

// Sum returns the number of standstills, their total and the longest.
func (k *Clock) Sum() (n int, all, longest time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.gaps {
		all += g.to.Sub(g.from)
		longest = max(longest, g.to.Sub(g.from))
	}
	return len(k.gaps), all, longest
}
