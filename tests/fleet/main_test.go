//go:build e2e

package fleet

import (
	"os"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/netns"
)

// The hollow kubelets listen on every address, and cannot be told not to: hence a network of its
// own.
func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }
