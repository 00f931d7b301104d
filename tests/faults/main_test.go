//go:build e2e

package faults

import (
	"os"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/netns"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m)) }
