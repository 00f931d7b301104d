//go:build e2e

package faults

import "testing"

// TestFaults runs every case with and without HTTP/2. Cases that measure time run in sequence, so
// that they do not disturb each other; cases that mostly wait for detection run in parallel.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	for _, lane := range lanes() {
		t.Run(lane, func(t *testing.T) {
			d := w.newDoor(t, lane)
			t.Run("process", func(t *testing.T) { testProcess(t, d) })
			t.Run("rolling update", func(t *testing.T) { testRolling(t, d) })
			t.Run("flooded", func(t *testing.T) { testIsolation(t, d) })
			t.Run("watches are spread", func(t *testing.T) { testWatches(t, d) })
			t.Run("nothing is left over", func(t *testing.T) { testLeftovers(t, d) })
			t.Run("status is written", func(t *testing.T) { testStatus(t, d) })
			t.Run("policy", func(t *testing.T) { testPolicy(t, d) })
			t.Run("egress", func(t *testing.T) { testEgress(t, d) })
			t.Run("full", func(t *testing.T) { testLimits(t, d) })
			t.Run("told to stop, busy", func(t *testing.T) { testRetryAfter(t, d) })
			t.Run("told to stop", func(t *testing.T) { testDrain(t, d) })
			t.Run("told to stop twice", func(t *testing.T) { testSecondSignal(t, d) })
			t.Run("apiserver killed", func(t *testing.T) { testAPIServer(t, d) })
			t.Run("only apiserver restarted", func(t *testing.T) { testOnlyAPIServer(t, d) })
			t.Run("endpoints", func(t *testing.T) { testEndpoints(t, d) })
		})
	}
}

// lanes are the protocols that Fairlead offers its clients (--http2).
func lanes() []string { return []string{"h2", "http1"} }
