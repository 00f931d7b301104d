//go:build e2e

package faults

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// stalls adds up for how long nothing ran on this machine, or nothing of ours: the test's own clock
// stood still, and so did Fairlead's. On a shared machine that is seconds at times, and no verdict
// can be reached in them.
type stalls struct{ nanos atomic.Int64 }

const (
	stallTick = 20 * time.Millisecond
	// stallFrom is the gap between two ticks from which on it counts: what a busy scheduler causes
	// is Fairlead's to live with.
	stallFrom = 250 * time.Millisecond
)

// follow looks at the clock until the test ends.
func (s *stalls) follow(t *testing.T) {
	beside(t, func(ctx context.Context) {
		tick := time.NewTicker(stallTick)
		defer tick.Stop()
		last := time.Now()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			now := time.Now()
			if gap := now.Sub(last) - stallTick; gap > stallFrom {
				s.nanos.Add(int64(gap))
			}
			last = now
		}
	})
}

// stopwatch measures time without stalls, and says both.
type stopwatch struct {
	s       *stalls
	begun   time.Time
	stalled int64
}

func (s *stalls) start() stopwatch { return stopwatch{s, time.Now(), s.nanos.Load()} }

// until is the time from the start to at, which must be now or just before. It fails where most of
// that was a stall: what is left shows nothing.
func (w stopwatch) until(t *testing.T, at time.Time) time.Duration {
	t.Helper()
	gross, stalled := at.Sub(w.begun), time.Duration(w.s.nanos.Load()-w.stalled)
	t.Logf("%s by the clock, less %s in which nothing ran here", gross.Round(time.Millisecond), stalled.Round(time.Millisecond))
	if stalled > gross/2 {
		t.Errorf("the machine stood still for %s of %s: there is nothing to judge", stalled, gross)
	}
	return gross - stalled
}
