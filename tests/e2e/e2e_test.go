//go:build e2e

package e2e

import "testing"

// TestE2E runs every case through Fairlead: with kubectl and client-go, and nothing changed but the address of the server.
func TestE2E(t *testing.T) {
	w := newWorld(t)
	for _, suite := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"discovery", testDiscovery},
		{"kubectl", testKubectl},
		{"identity", testIdentity},
		{"clients", testClients},
		{"crd", testCustomResources},
		{"controllers", testControllers},
		{"status", testStatus},
		{"nodes", testNodes},
	} {
		t.Run(suite.name, func(t *testing.T) {
			t.Parallel() // the long watches and deletions of one suite pass while the others work
			suite.run(t, w)
		})
	}
}
