//go:build e2e

package faults

import (
	"os"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/suite"
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

// Cases that measure time run in sequence, so that they do not disturb each other; those of
// endpoints mostly wait for detection and run in parallel.
func TestFaults(t *testing.T) {
	w := newWorld(t)
	suite.Cases[*door]{
		{Name: "process", Run: testProcess},
		{Name: "status is written", Run: testStatus},
		{Name: "egress", Run: testEgress},
		{Name: "told to stop", Run: testDrain},
		{Name: "told to stop twice", Run: testSecondSignal},
		{Name: "apiserver killed", Run: testAPIServer},
		{Name: "only apiserver restarted", Run: testOnlyAPIServer},
		{Name: "endpoints", Run: testEndpoints},
	}.Run(t, w.newDoor(t))
}
