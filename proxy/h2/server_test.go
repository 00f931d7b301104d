package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// holding is a backend: /hold answers when release is closed, /watch sends an event and lasts until
// the request is canceled, everything else is answered at once.
type holding struct {
	name    string
	release chan struct{}
	cut     chan struct{} // gets a value for each watch that has ended
}

func newHolding(name string) *holding {
	return &holding{name: name, release: make(chan struct{}), cut: make(chan struct{}, 10)}
}

func (b *holding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/hold":
		_, _ = io.WriteString(w, "begun ")
		_ = http.NewResponseController(w).Flush()
		<-b.release
	case "/watch":
		_, _ = io.WriteString(w, "event")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		b.cut <- struct{}{}
		return
	}
	_, _ = io.WriteString(w, b.name)
}

func longRunning(h *Head, p *Plan) { p.LongRunning = h.Path == "/watch" }

// begin reads the first n bytes of a response.
func (s *stand) begin(path string, n int) *http.Response {
	s.t.Helper()
	res := s.do("GET", path, nil)
	if _, err := io.ReadFull(res.Body, make([]byte, n)); err != nil {
		s.t.Fatalf("%s: %v", path, err)
	}
	return res
}

func TestShutdown(t *testing.T) { onDrivers(t, testShutdown) }

func testShutdown(t *testing.T, driver string) {
	b := newHolding("done")
	s := newStand(t, driver, b, longRunning)
	hold := s.begin("/hold", len("begun "))
	watch := s.begin("/watch", len("event"))

	over := make(chan error, 1)
	go func() { over <- s.server.Shutdown(t.Context(), 50*time.Millisecond) }()
	s.reads(watch, "") // like a watch that has timed out
	<-b.cut
	s.ends(ReasonDrain)
	select {
	case err := <-over:
		t.Fatalf("Shutdown returned %v while a request was under way", err)
	default:
	}
	close(b.release)
	s.reads(hold, "done")
	if o := <-s.ended; o.Reason != ReasonNone || o.Status != 200 {
		t.Errorf("the request ended with %+v", o)
	}
	if err := <-over; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestShutdownRunsOutOfTime(t *testing.T) { onDrivers(t, testShutdownRunsOutOfTime) }

func testShutdownRunsOutOfTime(t *testing.T, driver string) {
	b := newHolding("")
	t.Cleanup(func() { close(b.release) })
	s := newStand(t, driver, b, nil)
	hold := s.begin("/hold", len("begun "))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := s.server.Shutdown(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if _, err := io.ReadAll(hold.Body); err == nil {
		t.Error("a response that was cut off looks complete")
	}
	s.ends(ReasonClientLost)
}

func TestRetireEndpoint(t *testing.T) { onDrivers(t, testRetireEndpoint) }

func testRetireEndpoint(t *testing.T, driver string) {
	first, second := newHolding("first"), newHolding("second")
	var current atomic.Pointer[Endpoint]
	s := newStand(t, driver, first, func(h *Head, p *Plan) {
		longRunning(h, p)
		p.Forward = &Upstream{Pick: func([]*Endpoint) *Endpoint { return current.Load() }}
	})
	current.Store(s.ep)
	hold := s.begin("/hold", len("begun "))
	watch := s.begin("/watch", len("event"))

	current.Store(endpoint(newBackend(t, second).Listener.Addr().String()))
	s.server.Retire(s.ep, 50*time.Millisecond)
	s.reads(s.do("GET", "/", nil), "second")
	s.reads(watch, "") // like a watch that has timed out
	<-first.cut
	// On a slow machine the watch's grace may end before the new request does.
	if a, b := <-s.ended, <-s.ended; a.Reason != ReasonRetired && b.Reason != ReasonRetired {
		t.Errorf("the watch and the new request ended with %q and %q", a.Reason, b.Reason)
	}
	close(first.release)
	s.reads(hold, "first")
	<-s.ended
	left := func() int64 {
		n := int64(0)
		for _, sh := range s.server.shards {
			n += sh.e.Count.Conns[1].Load()
		}
		return n
	}
	s.eventually(func() bool { return left() <= 1 }, "the second backend's connection is left alone")
}

func TestAcceptAnswersInstead(t *testing.T) { onDrivers(t, testAcceptAnswersInstead) }

func testAcceptAnswersInstead(t *testing.T, driver string) {
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "https://elsewhere.example/", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "fine")
	}), func(_ *Head, p *Plan) {
		p.Accept = func(status int) http.Handler {
			if status < 300 {
				return nil
			}
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusBadGateway)
				_, _ = io.WriteString(w, "no redirects from "+r.URL.Path)
			})
		}
	})
	res := s.do("POST", "/moved", strings.NewReader("body"))
	if got := s.read(res); res.StatusCode != http.StatusBadGateway || got != "no redirects from /moved" || res.Header.Get("Location") != "" {
		t.Errorf("got %d %q, Location %q", res.StatusCode, got, res.Header.Get("Location"))
	}
	if o := <-s.ended; o.Reason != ReasonRejected || o.Status != http.StatusBadGateway {
		t.Errorf("outcome %+v", o)
	}
	s.reads(s.do("GET", "/", nil), "fine")
}

func TestGoAwayAfterRequest(t *testing.T) { onDrivers(t, testGoAwayAfterRequest) }

func testGoAwayAfterRequest(t *testing.T, driver string) {
	s := newStand(t, driver, newHolding("fine"), func(h *Head, p *Plan) { p.GoAway = h.Path == "/leave" })
	conns := map[string]bool{}
	ask := func(path string) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(i httptrace.GotConnInfo) { conns[i.Conn.LocalAddr().String()] = true },
		})
		req := must.Get(http.NewRequestWithContext(ctx, "GET", s.url+path, nil))(t)
		res := must.Get(s.client.Do(req))(t)
		defer res.Body.Close()
		s.reads(res, "fine")
	}
	ask("/")
	ask("/")
	if len(conns) != 1 {
		t.Fatalf("%d connections for two requests", len(conns))
	}
	ask("/leave")
	s.eventually(func() bool { ask("/"); return len(conns) > 1 }, "the client leaves") // GOAWAY may come after the first of these
}

// A client that reads nothing holds no more than the windows and one write, and does not delay
// other clients.
func TestFullSocket(t *testing.T) { onDrivers(t, testFullSocket) }

func testFullSocket(t *testing.T, driver string) {
	const size = 16 << 20 // more than the kernel buffers on both sides
	s := newStand(t, driver, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/big" {
			_, _ = io.WriteString(w, "fine")
			return
		}
		for n := 0; n < size; n += len(leanBody) {
			_, _ = w.Write(leanBody[:min(len(leanBody), size-n)])
		}
	}), nil)
	sh := s.server.shards[0]
	sh.lock()
	sh.e.Memory = hold.New(4 << 20)
	room := sh.e.Memory.Room() // a client that a busy machine takes for a distant one may get more than one window
	sh.settle()
	slow := dialLean(t, s.addr)
	defer slow.Close()
	must.Do(t, errors.Join(slow.get("/big"), slow.w.Flush()))
	n := &sh.e.Count
	s.eventually(func() bool { return n.Output.Load() > 0 && n.Queued.Load() > 0 }, "the socket is full")
	for range 50 {
		if got := s.read(s.do("GET", "/", nil)); got != "fine" {
			t.Fatalf("another client got %q", got)
		}
		const window, chunk, output = 256 << 10, 4 << 10, 128 << 10 // the engine's
		if q, o := n.Queued.Load(), n.Output.Load(); q > window+room+4*chunk || o > 2*output {
			t.Fatalf("%d bytes are queued in streams, %d in connections", q, o)
		}
	}
	body, err := slow.body(1)
	if err != nil || len(body) != size {
		t.Fatalf("%d bytes, %v", len(body), err)
	}
	for p := body; len(p) > 0; p = p[min(len(p), len(leanBody)):] {
		if string(p[:min(len(p), len(leanBody))]) != string(leanBody[:min(len(p), len(leanBody))]) {
			t.Fatal("the body was changed")
		}
	}
}

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

// A connection that arrives while Run ends, or later, is closed.
func TestServeWhileRunEnds(t *testing.T) {
	for range 100 {
		s := New(Config{})
		ctx, cancel := context.WithCancel(t.Context())
		ours, theirs := net.Pipe()
		var running sync.WaitGroup
		running.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() { s.Serve(nil, tls.Server(ours, &tls.Config{}), nil) })
		cancel()
		running.Wait()
		if _, err := theirs.Read(make([]byte, 1)); err == nil {
			t.Error("the connection is left open")
		}
		_ = theirs.Close()
	}
}
