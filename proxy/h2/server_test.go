package h2

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// holding is a backend: /hold begins, and goes on when release is closed; /watch begins, and lasts
// until the request is canceled; everything else is answered at once.
type holding struct {
	release chan struct{}
	cut     chan struct{} // gets a value for each watch that has ended
}

func newHolding() *holding {
	return &holding{release: make(chan struct{}), cut: make(chan struct{}, 10)}
}

func (b *holding) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		_, _ = io.WriteString(w, "begun ")
		_ = http.NewResponseController(w).Flush()
	}
	switch r.URL.Path {
	case "/hold":
		<-b.release
	case "/watch":
		<-r.Context().Done()
		b.cut <- struct{}{}
		return
	}
	_, _ = io.WriteString(w, "fine")
}

func (s *stand) begun(res *http.Response) *http.Response {
	s.t.Helper()
	must.Get(io.ReadFull(res.Body, make([]byte, len("begun "))))(s.t)
	return res
}

// Connections that cannot be served, as with too many open files, are logged now and then, not each.
func TestUnservedIsLoggedSeldom(t *testing.T) {
	var log strings.Builder
	s := New(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	conn, _ := sockets(t)
	must.Do(t, conn.Close())
	for range 3 {
		s.Serve(t.Context(), tls.Client(Wrap(conn), &tls.Config{}))
	}
	stop()
	running.Wait()
	check.Same(t, 1, strings.Count(log.String(), "serving a client"), "lines of %s", log.String())
}

// A drain ends the watches of clients and guests cleanly, and waits for clients' other requests.
func TestShutdown(t *testing.T) { onDrivers(t, testShutdown) }

func testShutdown(t *testing.T, driver string) {
	b := newHolding()
	s := newStand(t, driver, b, func(h *wire.Head, p *engine.Plan) { p.LongRunning = h.Path == "/watch" })
	hold := s.begun(s.do("GET", "/hold", nil))
	watches := []*http.Response{s.begun(s.do("GET", "/watch", nil)), s.begun(s.guest("GET", "/watch", nil))}

	over := make(chan error, 1)
	go func() { over <- s.server.Shutdown(t.Context(), 50*time.Millisecond) }()
	for _, watch := range watches {
		s.reads(watch, "") // like a watch that has timed out
		<-b.cut
		s.ends(engine.ReasonDrain)
	}
	check.Same(t, 0, len(over), "Shutdown returned while a request was under way")
	close(b.release)
	s.reads(hold, "fine")
	o := <-s.ended
	check.Same(t, true, o.Reason == engine.ReasonNone && o.Status == 200, "the request ended with %+v", o)
	must.Do(t, <-over)
}

// When there is no more time for a drain, it ends all requests: not their clients, nor their backends. The end of the
// server also ends those of guests that came later.
func TestShutdownRunsOutOfTime(t *testing.T) { onDrivers(t, testShutdownRunsOutOfTime) }

func testShutdownRunsOutOfTime(t *testing.T, driver string) {
	b := newHolding()
	t.Cleanup(func() { close(b.release) })
	s := newStand(t, driver, b, nil)
	hold := s.begun(s.do("GET", "/hold", nil))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	check.Is(t, context.DeadlineExceeded, s.server.Shutdown(ctx, time.Hour), "Shutdown")
	s.ends(engine.ReasonDrain)
	guest := s.begun(s.guest("GET", "/hold", nil))
	s.stop()
	<-s.stopped
	s.ends(engine.ReasonDrain)
	for _, res := range []*http.Response{hold, guest} {
		check.Same(t, true, check.Err(io.ReadAll(res.Body)) != nil, "a response that was cut off does not look complete")
	}
	check.Is(t, errServerEnded, check.Err(s.ask(t.Context(), "GET", "/", nil)), "after the end")
	s.ends(engine.ReasonAbort)
}

// A resting shard ticks at the full rate again after a request.
func TestWorkEndsTheRest(t *testing.T) {
	s := newStand(t, "loop", newHolding(), nil)
	for _, sh := range s.server.shards {
		sh.lock()
		sh.pace = 0
		sh.mu.Unlock()
	}
	s.reads(s.do("GET", "/", nil), "fine")
	check.Same(t, true, slices.ContainsFunc(s.server.shards, func(sh *shard) bool {
		sh.lock()
		defer sh.mu.Unlock()
		return sh.pace == engine.TickEvery
	}), "a shard ticks at the full rate")
}

// A connection that arrives while Run ends, or later, is closed.
func TestServeWhileRunEnds(t *testing.T) {
	for range 100 {
		s := New(Config{})
		ctx, cancel := context.WithCancel(t.Context())
		ours, theirs := net.Pipe()
		var running sync.WaitGroup
		running.Go(func() { check.Is(t, nil, s.Run(ctx), "Run") })
		running.Go(func() { s.Serve(t.Context(), tls.Server(Wrap(ours), &tls.Config{})) })
		cancel()
		running.Wait()
		check.Same(t, true, check.Err(theirs.Read(make([]byte, 1))) != nil, "the connection is closed")
		_ = theirs.Close()
	}
}

func TestMetricsAreRegistered(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := New(Config{Metrics: reg, Shards: 2})
	s.shards[0].e.Count.Streams.Add(2)
	s.shards[1].e.Count.Streams.Add(3)
	s.shards[1].e.Count.Resets[4].Add(1)
	want := `
# HELP fairlead_h2_streams Streams of clients that the engine has under way.
# TYPE fairlead_h2_streams gauge
fairlead_h2_streams 5
# HELP fairlead_h2_resets_total Streams that were reset, by cause: client, backend, limit (concurrent streams), protocol, lane (deadline, drain, panic).
# TYPE fairlead_h2_resets_total counter
fairlead_h2_resets_total{cause="backend"} 0
fairlead_h2_resets_total{cause="client"} 0
fairlead_h2_resets_total{cause="lane"} 1
fairlead_h2_resets_total{cause="limit"} 0
fairlead_h2_resets_total{cause="protocol"} 0
`
	must.Do(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "fairlead_h2_streams", "fairlead_h2_resets_total"))
	check.Same(t, 16, must.Get(testutil.GatherAndCount(reg))(t), "series")
}
