package h2

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A panic in the engine is logged with its stack, and ends the connection that caused it; one in a handler of this
// process ends its response. The process and all other requests continue (engine.TestPanics has all the places).
func TestPanicEndsItsConnection(t *testing.T) {
	var log logbook.Book
	b := newHolding()
	s := newStand(t, "loop", b, func(h *wire.Head, p *engine.Plan) {
		switch h.Path {
		case "/engine":
			panic("deciding")
		case "/handler":
			p.Forward, p.Serve = nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })
		}
	}, func(c *Config) { c.Shards, c.Logger = 1, slog.New(slog.NewTextHandler(&log, nil)) })
	s.panics = 3
	held := s.begun(s.do("GET", "/hold", nil)) // by another client, over the same connection to the backend
	for range s.panics {
		c := s.greet()
		must.Do(t, c.gets(1, "/engine"))
		for err := error(nil); err == nil; {
			_, err = c.fr.ReadFrame()
		}
	}
	if res, err := s.client.Get(s.url + "/handler"); err == nil {
		_ = res.Body.Close()
		t.Errorf("the client of a handler that panicked got %s", res.Status)
	}
	close(b.release)
	s.reads(held, "fine")
	s.reads(s.do("GET", "/", nil), "fine")
	check.Same(t, s.panics, s.caught(), "panics")
	for _, text := range []string{"engine panicked", "boom"} {
		must.Soon(t, 10*time.Second, text+" is logged with its stack", func() bool {
			_, line, logged := strings.Cut(log.String(), text)
			return logged && strings.Contains(line, "rescue_test.go")
		})
	}
}
