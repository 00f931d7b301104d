package h2

import (
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// A resting shard ticks at the full rate again after a request.
func TestWorkEndsTheRest(t *testing.T) {
	s := newStand(t, "portable", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }), nil)
	for _, sh := range s.server.shards {
		sh.lock()
		sh.pace = 0
		sh.mu.Unlock()
	}
	s.read(s.do("GET", "/", nil))
	if !slices.ContainsFunc(s.server.shards, func(sh *shard) bool {
		sh.lock()
		defer sh.mu.Unlock()
		return sh.pace == engine.TickEvery
	}) {
		t.Error("no shard ticks at the full rate")
	}
}
