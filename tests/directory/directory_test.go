//go:build e2e

package directory

import (
	"testing"
)

func TestDirectory(t *testing.T) {
	w := newWorld(t)
	for _, suite := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"kubectl", testKubectl},
		{"identity", testIdentity},
		{"modes", testModes},
		{"invalid", testInvalid},
		{"local", testLocal},
		{"protected", testProtected},
		{"example", testExample},
		{"speed", testSpeed},
	} {
		t.Run(suite.name, func(t *testing.T) {
			if suite.name != "speed" { // which measures: the parallel ones wait until it has ended
				t.Parallel()
			}
			suite.run(t, w)
		})
	}
}
