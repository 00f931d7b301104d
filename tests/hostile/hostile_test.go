//go:build e2e

package hostile

import (
	"flag"
	"testing"
)

var (
	// allMillion is for the figures of docs/evidence/attacks.md.
	allMillion = flag.Bool("million", false, "open a million streams on one connection, however long it takes")
	// otherBuild is for figures of an earlier commit.
	otherBuild = flag.String("fairlead", "", "attack this executable (default: the working tree's, built anew)")
)

// No bytes that a caller sends to a port cost other callers more than a documented amount.
func TestProtocol(t *testing.T) {
	w := newWorld(t)
	t.Run("h2spec", func(t *testing.T) { testConformance(t, w) })
	t.Run("frame", func(t *testing.T) {
		d := w.open(t)
		t.Run("smuggling", func(t *testing.T) { testSmuggling(t, d) })
		t.Run("backends", func(t *testing.T) { testBackends(t, d) })
		t.Run("bombs", func(t *testing.T) { testBombs(t, w) })
		t.Run("floods", func(t *testing.T) { testFloods(t, d) })
		t.Run("many streams", func(t *testing.T) { testManyStreams(t, d) })
		t.Run("idle connections", func(t *testing.T) { testIdle(t, d) })
		t.Run("slow peers", func(t *testing.T) { testSlow(t, d) })
		t.Run("slow readers", func(t *testing.T) { testSlowReaders(t, d) })
	})
}
