package monotonic

import (
	"testing"
	"time"
)

// The distance of two moments is that of their times.
func TestMoments(t *testing.T) {
	now := time.Now()
	if got := At(now.Add(time.Minute)) - At(now); got != int64(time.Minute) {
		t.Errorf("a minute later is %d ns later", got)
	}
	if first := Now(); first <= 0 || Since(first) < 0 || Since(first) > time.Minute {
		t.Errorf("%d: zero may be none, and no moment; since then %v", first, Since(first))
	}
}
