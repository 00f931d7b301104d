//go:build e2e

package faults

import (
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/clock"
)

// stopwatch measures time without standstills of the machine: a shared one may stop for seconds,
// with the test and Fairlead, and no verdict is possible then.
type stopwatch struct {
	clock *clock.Clock
	begun time.Time
}

func (w *world) start() stopwatch { return stopwatch{&w.clock, time.Now()} }

// until returns the time from the start to at, which must be now or just before. It fails if most
// of that was a standstill: the rest proves nothing.
func (s stopwatch) until(t *testing.T, at time.Time) time.Duration {
	t.Helper()
	gross, still := at.Sub(s.begun), s.clock.Stood(s.begun, at)
	t.Logf("%s by the clock, minus %s of standstill", gross.Round(time.Millisecond), still.Round(time.Millisecond))
	if still > gross/2 {
		t.Errorf("the machine stood still for %s of %s: the result proves nothing", still, gross)
	}
	return gross - still
}
