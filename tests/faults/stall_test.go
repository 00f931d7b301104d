//go:build e2e

package faults

import (
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/clock"
)

// stopwatch measures time without what the machine stood still, the test and Fairlead with it: on a
// shared machine that is seconds at times, and no verdict can be reached in them.
type stopwatch struct {
	clock *clock.Clock
	begun time.Time
}

func (w *world) start() stopwatch { return stopwatch{&w.clock, time.Now()} }

// until is the time from the start to at, which must be now or just before. It fails where most of
// that was a standstill: what is left shows nothing.
func (s stopwatch) until(t *testing.T, at time.Time) time.Duration {
	t.Helper()
	gross, still := at.Sub(s.begun), s.clock.Stood(s.begun, at)
	t.Logf("%s by the clock, less %s in which nothing ran here", gross.Round(time.Millisecond), still.Round(time.Millisecond))
	if still > gross/2 {
		t.Errorf("the machine stood still for %s of %s: there is nothing to judge", still, gross)
	}
	return gross - still
}
