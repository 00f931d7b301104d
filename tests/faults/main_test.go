//go:build e2e

package faults

import (
	"os"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/netns"
)

func TestMain(m *testing.M) {
	if os.Getenv(asExtension) != "" {
		if err := serveExtension(os.Args[1:]); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(netns.Main(m))
}
