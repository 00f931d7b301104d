//go:build e2e

package faults

import (
	"os"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/cluster/netns"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
)

func TestMain(m *testing.M) {
	if os.Getenv(asExtension) != "" {
		if err := serveExtension(os.Args[1:]); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(netns.Main(m))
}

// The cases measure time, so they run in sequence.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	suite.Cases[*door]{
		{Name: "process", Run: testProcess},
		{Name: "status is written", Run: testStatus},
		{Name: "told to stop", Run: testDrain},
		{Name: "told to stop twice", Run: testSecondSignal},
		{Name: "blackholed", Run: testBlackhole},
	}.Run(t, w.newDoor(t))
}
