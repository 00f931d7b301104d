package health

import (
	"testing"
	"testing/synctest"
	"time"
)

// An endpoint is slow if it takes more than ten times as long as its peers.
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
			t.Error("the endpoint is not slow")
		}
	})
}
