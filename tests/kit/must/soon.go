package must

import (
	"testing"
	"time"
)

// Soon waits until is returns true, and ends the test if that takes longer than most.
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
