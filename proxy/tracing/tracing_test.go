package tracing

import (
	"runtime"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// A span's texts keep nothing else of what a client has sent: thousands of spans wait while the collector is down.
func TestTextKeepsNoMore(t *testing.T) {
	before := scene.Heap()
	var texts []string
	for range 16 {
		path, _, _ := strings.Cut("/path?"+strings.Repeat("q", 1<<20), "?")
		texts = append(texts, text(path))
	}
	grown := scene.Heap() - before
	check.Same(t, true, grown < 1<<20, "%d paths of targets of 1 MB take %.0f bytes", len(texts), grown)
	runtime.KeepAlive(texts)
}
