//go:build e2e

package entrypoint

import (
	"os"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/netns"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }

// network gives this process the addresses of nodes, the cluster address of the Service kubernetes,
// and a private folder for a pod's credentials.
func network(t *testing.T) {
	t.Helper()
	netns.Up(t, "10.79.0.0/16", clusterIP+"/32")
	netns.Hide(t, "/run/secrets")
}
