package h2

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A panic in the engine is logged with its stack, and ends the connection that caused it. The
// process and all other connections continue (engine.TestPanics has all the places).
func TestPanicEndsItsConnection(t *testing.T) { onDrivers(t, testPanicEndsItsConnection) }

func testPanicEndsItsConnection(t *testing.T, driver string) {
	var log logbook.Book
	b := newHolding()
	s := newStand(t, driver, b, func(h *Head, _ *Plan) {
		if h.Path == "/panic" {
			panic("deciding")
		}
	}, func(c *Config) { c.Shards, c.Logger = 1, slog.New(slog.NewTextHandler(&log, nil)) })
	s.panics = 3
	held := s.begin("/hold", len("begun ")) // by another client, over the same connection to the backend
	for range s.panics {
		c := s.greet()
		must.Do(t, c.gets(1, "/panic"))
		for err := error(nil); err == nil; {
			_, err = c.fr.ReadFrame()
		}
	}
	close(b.release)
	s.reads(held, "fine")
	s.reads(s.do("GET", "/", nil), "fine")
	check.Same(t, s.panics, s.caught(), "panics")
	loggedPanic(t, &log, "engine panicked")
}

// A panic in a handler of this process ends its response, and is logged with its stack.
func TestHandlerPanics(t *testing.T) {
	var log logbook.Book
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })
	s := newStand(t, "", nil, func(_ *Head, p *Plan) { p.Forward, p.Serve = nil, handler }, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	res, err := s.client.Get(s.url)
	if err == nil {
		_ = res.Body.Close()
		t.Errorf("the client got %s", res.Status)
	}
	loggedPanic(t, &log, "boom")
}

// loggedPanic waits for a line with the text and the stack.
func loggedPanic(t *testing.T, log *logbook.Book, text string) {
	t.Helper()
	must.Soon(t, 10*time.Second, text+" and a stack", func() bool {
		return strings.Contains(log.String(), text) && strings.Contains(log.String(), "rescue_test.go")
	})
}
