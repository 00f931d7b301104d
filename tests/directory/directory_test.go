//go:build e2e

package directory

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/suite"
)

func TestDirectory(t *testing.T) {
	w := newWorld(t)
	t.Run("speed", func(t *testing.T) { testSpeed(t, w) }) // it measures, so the others start when it has ended
	suite.Cases[*world]{
		{"kubectl", testKubectl},
		{"identity", testIdentity},
		{"modes", testModes},
		{"egress", testEgress},
		{"local", testLocal},
		{"claimed", testClaimed},
		{"example", testExample},
	}.Beside(t, w)
}
