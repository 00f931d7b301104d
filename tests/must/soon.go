package must

import (
	"testing"
	"time"
)

// Soon waits for what somebody else brings about in their own time, and ends the test if it is not
// so within most.
func Soon(t testing.TB, most time.Duration, what string, is func() bool) {
	t.Helper()
	tick, late := time.NewTicker(time.Millisecond), time.After(most)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within %s: %s", most, what)
		}
	}
}
