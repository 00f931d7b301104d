//go:build e2e

package e2e

import (
	"os"
	"sync"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// direct, when it is set in the environment, runs every case against kube-apiserver itself, with no
// Fairlead anywhere: what fails then is the case, not Fairlead.
const direct = "FAIRLEAD_E2E_DIRECT"

// impersonate is a lane before a kube-apiserver that believes no front proxy
// (--local-identity=impersonate), with HTTP/2 for clients.
const impersonate = "impersonate"

// lanes are the protocols that Fairlead offers its clients (--http2), and the ways by which it
// reaches kube-apiserver. Nobody may feel a difference.
func lanes() []string {
	if os.Getenv(direct) != "" {
		return []string{direct}
	}
	return []string{"h2", "http1", impersonate}
}

// TestE2E runs every case through Fairlead, over each protocol: with kubectl and client-go, and
// nothing changed but the address of the server.
func TestE2E(t *testing.T) {
	fairlead := suite.Build(t, t.TempDir())
	t.Run("usage", func(t *testing.T) { testUsage(t, fairlead) })
	var alone sync.Mutex
	for _, lane := range lanes() {
		t.Run(lane, func(t *testing.T) {
			t.Parallel() // most of the time passes in waiting
			testLane(t, newWorld(t, lane, fairlead), &alone)
		})
	}
}

func testLane(t *testing.T, w *world, alone *sync.Mutex) {
	q := newQuay(t, w)
	if w.lane != direct {
		t.Run("flood", func(t *testing.T) {
			alone.Lock() // one of them is work enough for a small machine
			defer alone.Unlock()
			testFlood(t, q)
		})
	}
	suite.Cases[*world]{ // the long watches and deletions of one pass while the others work
		{"discovery", testDiscovery},
		{"kubectl", testKubectl},
		{"identity", testIdentity},
		{"clients", testClients},
		{"crd", testCustomResources},
		{"controllers", testControllers},
		{"status", testStatus},
		{"admin", testAdmin},
		{"nodes", testNodes},
		{"extension", func(t *testing.T, _ *world) { testExtension(t, q) }},
	}.Beside(t, w)
}
