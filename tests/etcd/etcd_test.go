//go:build e2e

package etcd

import (
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/suite"
)

func TestEtcd(t *testing.T) {
	w := newWorld(t)
	t.Run("load", func(t *testing.T) { testLoad(t, w) }) // it measures, so the others start when it has ended
	suite.Cases[*world]{
		{"differential", testDifferential},
		{"shared", testShared},
		{"beside", testBeside},
		{"kubectl", testKubectl},
		{"leader", testLeader},
		{"stopped", testStopped},
		{"full", testFull},
		{"restart", testRestart},
	}.Beside(t, w)
}
