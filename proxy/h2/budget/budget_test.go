package budget

import (
	"testing"
	"time"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	b := New(0)
	spent := func(n int, now time.Duration) (times int) {
		for b.Spend(n, now) {
			times++
		}
		return times
	}
	if n := spent(Reset, 0); n != Burst/Reset {
		t.Errorf("%d resets at once", n)
	}
	// Frames that come faster than the clock's unit must not stop the budget from refilling.
	const rounds, step = 100_000, 30 * time.Microsecond
	n := 0
	for i := range rounds {
		if b.Spend(1, time.Duration(i)*step) {
			n++
			continue
		}
		b.left++ // the refused frame is not charged
	}
	if want := int(rounds * step * Rate / time.Second); n < want-Reset-1 || n > want {
		t.Errorf("%d were allowed in %v, want %d", n, rounds*step, want)
	}
	const year = 365 * 24 * time.Hour
	if n := spent(Reset, year); n != Burst/Reset {
		t.Errorf("%d resets after a year", n)
	}
	b.Completed()
	b.Completed()
	if n := spent(Reset, year); n != 1 { // two, minus the refused one
		t.Errorf("%d resets after two requests", n)
	}
}
