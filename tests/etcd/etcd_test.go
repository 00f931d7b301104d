//go:build e2e

package etcd

import (
	"testing"
)

func TestEtcd(t *testing.T) {
	w := newWorld(t)
	for _, suite := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"differential", testDifferential},
		{"keys", testKeys},
		{"kubectl", testKubectl},
		{"two", testTwo},
		{"beside", testBeside},
		{"leader", testLeader},
		{"faults", testFaults},
		{"load", testLoad},
	} {
		t.Run(suite.name, func(t *testing.T) {
			if suite.name != "load" { // which measures: the parallel ones wait until it has ended
				t.Parallel()
			}
			suite.run(t, w)
		})
	}
}
