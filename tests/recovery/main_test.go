//go:build e2e

package recovery

import (
	"os"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/netns"
)

// The adapter listens on port 8080 of every address, and cannot be told not to: hence a network of
// its own.
func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }
