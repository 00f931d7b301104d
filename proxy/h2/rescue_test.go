package h2

import (
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A panic in the engine ends the connection that caused it. The process and all other connections
// continue.
func TestPanicEndsItsConnection(t *testing.T) { onDrivers(t, testPanicEndsItsConnection) }

func testPanicEndsItsConnection(t *testing.T, driver string) {
	tests := []struct {
		name string
		// plan makes requests for /panic panic.
		plan func(p *Plan)
		// answered says that the client gets its answer despite the panic.
		answered bool
		panics   int64
	}{
		{"deciding", func(*Plan) { panic("deciding") }, false, 1},
		{"picking an endpoint", func(p *Plan) { p.Forward = &Upstream{Pick: func([]*Endpoint) *Endpoint { panic("picking") }} }, false, 1},
		{"looking at the response", func(p *Plan) { p.Accept = func(int) http.Handler { panic("looking") } }, false, 1},
		{"saying why it failed", func(p *Plan) {
			p.Forward = &Upstream{Pick: func([]*Endpoint) *Endpoint { return nil }}
			p.Fail = func(Outcome) http.Handler { panic("failing") }
		}, false, 1},
		{"and when the endpoint is released", func(p *Plan) {
			pick := p.Forward.Pick
			p.Forward = &Upstream{Pick: func(tried []*Endpoint) *Endpoint {
				ep := *pick(tried)
				ep.Via, ep.Release = pick(tried), func() { panic("releasing") }
				return &ep
			}}
			p.Accept = func(int) http.Handler { panic("looking") }
		}, false, 2},
		{"when it has ended", func(p *Plan) {
			done := p.Done
			p.Done = func(o Outcome) { done(o); panic("done") }
		}, true, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log logbook.Book
			b := newHolding("fine")
			s := newStand(t, driver, b, func(h *Head, p *Plan) {
				if h.Path == "/panic" {
					tt.plan(p)
				}
			}, func(c *Config) { c.Shards, c.Logger = 1, slog.New(slog.NewTextHandler(&log, nil)) })
			s.panics = tt.panics
			held := s.begin("/hold", len("begun ")) // by another client, over the same connection to the backend
			other := &http.Client{Transport: s.client.Transport.(*http.Transport).Clone(), Timeout: 10 * time.Second}
			defer other.CloseIdleConnections()
			for range 3 {
				req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/panic", strings.NewReader("body")))(t)
				res, err := other.Do(req)
				if err == nil {
					_ = res.Body.Close()
				}
				if (err == nil) != tt.answered {
					t.Errorf("the request got %v, %v", res, err)
				}
			}
			close(b.release)
			s.reads(held, "fine")
			s.reads(s.do("GET", "/", nil), "fine")
			// A client gets its answer before the stream has ended here.
			sh, clients := s.server.shards[0], int64(1)
			if tt.answered {
				clients = 2
			}
			for end := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
				n := &sh.e.Count
				text := log.String() // includes the stack
				if strings.Contains(text, "engine panicked") && strings.Contains(text, "rescue_test.go") && s.caught() >= 3*tt.panics && n.Conns[0].Load() == clients && n.Streams.Load() == 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%d panics, %d connections of clients, %d streams; want 3 times %d, %d and none; log: %q", s.caught(), n.Conns[0].Load(), n.Streams.Load(), tt.panics, clients, text)
				}
			}
		})
	}
}

// A panic in a handler of this process ends its response, and is logged with its stack.
func TestHandlerPanics(t *testing.T) {
	var log logbook.Book
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })
	s := newStand(t, "", http.NotFoundHandler(), func(_ *Head, p *Plan) { p.Forward, p.Serve = nil, handler }, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	res, err := s.client.Do(must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, s.url, nil))(t))
	if err == nil {
		_ = res.Body.Close()
		t.Errorf("the client got %s", res.Status)
	}
	must.Soon(t, 10*time.Second, "a line with the stack", func() bool {
		return strings.Contains(log.String(), "boom") && strings.Contains(log.String(), "rescue_test.go")
	})
}
