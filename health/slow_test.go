package health

import (
	"testing"
	"testing/synctest"
	"time"
)

// More than ten times as slow as its peers is slow.
func TestSlowIsTenTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, addresses, _ := trio(t)
		b.traffic(addresses, 12*time.Second, func(i int) time.Duration {
			if i == 0 {
				return 105 * time.Millisecond
			}
			return 10 * time.Millisecond
		})
		if !b.notes.last(addresses[0]).Slow {
			t.Error("it is not slow")
		}
	})
}
