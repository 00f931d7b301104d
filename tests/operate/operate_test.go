//go:build e2e

package operate

import (
	"os"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/netns"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

// TestOperate runs every case on one cluster.
func TestOperate(t *testing.T) {
	w := newWorld(t)
	t.Run("tutorial", func(t *testing.T) { testTutorial(t, w) }) // before the others, because it measures an outage
	suite.Cases[*world]{                                         // in parallel, because most of them wait
		{"manifests", testManifests},
		{"documents", testDocuments},
		{"runbooks", testRunbooks},
		{"roles", testRoles},
		{"explain", testExplain},
		{"alerts", testAlerts},
		{"page", testPage},
	}.Beside(t, w)
}
