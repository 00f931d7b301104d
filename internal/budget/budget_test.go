package budget

import (
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	b := New(0, Burst)
	spent := func(n int, now time.Duration) (times int) {
		for b.Spend(n, now) {
			times++
		}
		return times
	}
	check.Same(t, Burst/Completed, spent(Reset+2*Frame, 0), "resets at once")
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
	if want := int(rounds * step * Rate / time.Second); n < want-Completed-1 || n > want {
		t.Errorf("%d were allowed in %v, want %d", n, rounds*step, want)
	}
	const year = 365 * 24 * time.Hour
	check.Same(t, Burst/Completed, spent(Completed, year), "resets after a year")
	b.Earn(2 * Completed)
	check.Same(t, 1, spent(Completed, year), "resets after two requests, minus the refused one")
	b = New(0, Burst)
	b.Sent(1, true)
	check.Same(t, Burst, spent(Frame, 0), "frames at once, whatever was sent before")
	b.Sent(1, true)
	check.Same(t, 1, spent(Frame, 0), "frames after DATA: two, minus the refused one")
	b.Sent(bytesSent-1, false)
	check.Same(t, 0, spent(Frame, 0), "frames after DATA that the peer has made small")
	b.Sent(3*bytesSent, false)
	check.Same(t, 3-2, spent(Frame, 0), "frames after DATA of three updates, minus two refused ones")
	b = New(0, Saved)
	b.Earn(2 * Saved)
	check.Same(t, Saved, spent(Frame, 0), "frames that were saved up")
	check.Same(t, Burst, spent(Frame, year), "frames after a year")
}
