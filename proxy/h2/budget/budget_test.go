package budget

import (
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/check"
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
	check.Same(t, Burst/Reset, spent(Reset, 0), "resets at once")
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
	check.Same(t, Burst/Reset, spent(Reset, year), "resets after a year")
	b.Completed()
	b.Completed()
	if n := spent(Reset, year); n != 1 { // two, minus the refused one
		t.Errorf("%d resets after two requests", n)
	}
	b = New(0)
	b.Acknowledged()
	check.Same(t, Burst, spent(Control, 0), "frames at once, whatever was sent before")
	b.Acknowledged()
	check.Same(t, 1, spent(Control, 0), "frames after DATA: two, minus the refused one")
}
