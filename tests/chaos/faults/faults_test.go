//go:build e2e

package faults

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
)

// The cases measure time, so they run in sequence.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	suite.Cases[*door]{
		{Name: "deaths", Run: testDeaths},
		{Name: "told to stop", Run: testDrain},
		{Name: "told to stop twice", Run: testSecondSignal},
		{Name: "blackholed", Run: testBlackhole},
		{Name: "rotation", Run: testRotation},
		{Name: "ClusterTrustBundle", Run: testTrustBundle},
	}.Run(t, w.newDoor(t))
}
