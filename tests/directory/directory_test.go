//go:build e2e

package directory

import "testing"

func TestDirectory(t *testing.T) {
	w := newWorld(t)
	for _, suite := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"kubectl", testKubectl},
	} {
		t.Run(suite.name, func(t *testing.T) {
			t.Parallel()
			suite.run(t, w)
		})
	}
}
