//go:build e2e

package e2e

import (
	"os"
	"sync"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// direct is an environment variable. If it is set, every case runs against kube-apiserver itself,
// without Fairlead: what fails then is not Fairlead's fault.
const direct = "FAIRLEAD_E2E_DIRECT"

// impersonate is a lane in front of a kube-apiserver that trusts no front proxy
// (--local-identity=impersonate), with HTTP/2 for clients.
const impersonate = "impersonate"

// lanes returns the protocols that Fairlead offers to clients (--http2) and the ways in which it
// reaches kube-apiserver. Clients must not notice a difference.
func lanes() []string {
	if os.Getenv(direct) != "" {
		return []string{direct}
	}
	return []string{"h2", "http1", impersonate}
}

// TestE2E runs every case through Fairlead, in every lane, with kubectl and client-go. Only the
// server's address differs. tests/differential compares the documents of discovery with those of
// kube-apiserver.
func TestE2E(t *testing.T) {
	fairlead := suite.Build(t, t.TempDir())
	var alone sync.Mutex
	for _, lane := range lanes() {
		t.Run(lane, func(t *testing.T) {
			t.Parallel() // most of the time passes in waiting
			w := newWorld(t, lane, fairlead)
			q := newQuay(t, w)
			if lane != direct {
				t.Run("flood", func(t *testing.T) {
					alone.Lock() // one flood at a time is enough for a small machine
					defer alone.Unlock()
					testFlood(t, q)
				})
				t.Run("admin", func(t *testing.T) { testAdmin(t, q) })
			}
			suite.Cases[*world]{ // the deletions of some run while others work
				{"kubectl", testKubectl},
				{"crd", testCustomResources},
				{"controllers", testControllers},
				{"nodes", testNodes},
				{"identity", func(t *testing.T, _ *world) { testIdentity(t, q) }},
			}.Beside(t, w)
		})
	}
}
