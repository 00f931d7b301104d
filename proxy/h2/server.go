// Package h2 forwards HTTP/2 requests from clients to HTTP/2 backends frame by frame.
//
// It has three parts. Package wire reads and writes frames, field blocks and heads. Package engine is a pure state
// machine: bytes from a connection go in, bytes for connections come out. This package drives engines. A shard
// (shard.go) guards one engine with one mutex and moves its output. One goroutine per shard (loop.go) reads and writes
// all its TLS connections (link.go). Server takes connections over after their handshake, by Config.Decide and Dial.
//
// The one concurrency rule: everything in an engine (its connections, streams and pools) is only
// touched under its shard's mutex, and nothing blocks while that mutex is held.
//
// It is not an HTTP/1.1 proxy, does not upgrade or push, does not offer extended CONNECT (RFC 8441) and ignores
// priorities (RFC 9113 §5.3.2). What is not forwarded an http.Handler answers (Plan.Serve), on its own goroutine.
package h2

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// Config configures a Server. Proxy.Frames sets Decide, Dial and Source, adminEngine in cmd/fairlead the admin port's.
type Config struct {
	// Decide returns the plan for a request. It is called under the mutex of a shard, so it must not block, nor call
	// resume itself. If it needs to wait it returns false, and arranges that another goroutine calls resume once: the
	// stream is parked, other streams continue. Plan.Done is always called.
	Decide func(c *ConnInfo, h *wire.Head, resume func(engine.Plan)) (engine.Plan, bool)

	// Dial connects to an endpoint and finishes the TLS handshake with ALPN h2. It runs on its own goroutine, must obey
	// ctx, and bounds its own time, for which requests wait. It passes the TCP connection through Wrap before it calls
	// tls.Client. closed is called once when the connection has ended, on that connection's own goroutine.
	Dial func(ctx context.Context, ep *engine.Endpoint) (c *tls.Conn, closed func(), err error)

	MaxStreams uint32       // per client connection (--http2-max-streams-per-connection); 0 means 250
	Shards     int          // engines with own backend connections; 0 means one per two processors, at least one
	Logger     *slog.Logger // nil discards
	Memory     *hold.Bound  // bounds what all connections of the process hold; all Servers share it. Nil means its own
	// Source returns whose share of Memory a client's heads count for. Nil means none.
	Source  func(remote string) string
	Metrics prometheus.Registerer // registers the metrics; each Server needs its own registerer. Nil means unregistered
}

// Server is the engines with their drivers. Run must be running while it serves: it moves bytes and runs timers.
type Server struct {
	cfg    Config
	shards []*shard
	next   atomic.Uint32
	warned atomic.Int64 // when a connection could last not be served, in seconds
	links  sync.WaitGroup
	cancel context.CancelFunc
}

// New returns a Server. Give its Serve the connections that agreed on h2, as front.Port does, with Wrap below TLS.
func New(cfg Config) *Server {
	ctx, cancel := context.WithCancel(context.Background()) // ends with Run
	cfg.Memory, cfg.Logger = cmp.Or(cfg.Memory, hold.New(0)), cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s := &Server{cfg: cfg, cancel: cancel}
	pool := &buffers{part: sync.Pool{New: func() any { return new(partBytes) }}}
	// Half of the processors are left to handshakes, handlers and the garbage collector. Fewer
	// shards make larger batches: each has its own connections to every backend.
	for range cmp.Or(cfg.Shards, max(1, runtime.GOMAXPROCS(0)/2)) {
		s.shards = append(s.shards, newShard(ctx, &cfg, &s.links, pool))
	}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(metrics(s.shards)...)
	}
	return s
}

// Run serves connections until ctx ends, or with an error until it fails, then closes all and waits for all it started.
func (s *Server) Run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	for _, sh := range s.shards {
		running.Go(func() error { sh.runTimers(); return nil })
		running.Go(sh.loop.run)
	}
	<-ctx.Done()
	s.cancel()
	for _, sh := range s.shards {
		sh.lock()
		sh.ended = true
		sh.e.CutAll(errServerEnded)
		sh.settle()
	}
	s.links.Wait()
	for _, sh := range s.shards {
		sh.loop.close()
	}
	return running.Wait()
}

var errServerEnded = errors.New("server ended")

// Serve serves a client's connection and returns when it has ended. Requests served here have contexts below ctx.
func (s *Server) Serve(ctx context.Context, conn *tls.Conn) {
	ctx = context.WithValue(ctx, http.LocalAddrContextKey, conn.LocalAddr())
	info := &ConnInfo{Context: ctx, Remote: conn.RemoteAddr(), TLS: conn.ConnectionState()}
	sh := s.shards[int(s.next.Add(1))%len(s.shards)]
	l, err := sh.newLink(conn)
	if err != nil { // usually there are too many open files, and thousands of clients
		if now, was := time.Now().Unix(), s.warned.Load(); now-was >= 10 && s.warned.CompareAndSwap(was, now) {
			s.cfg.Logger.Warn("serving a client", "err", err)
		}
		return
	}
	l.info = info
	sh.lock()
	if sh.ended { // and links may have been waited for
		sh.settle()
		l.discard()
		return
	}
	s.links.Add(1)
	defer s.links.Done()
	c := sh.e.AcceptClient()
	if s.cfg.Source != nil {
		c.Source = s.cfg.Memory.Source(s.cfg.Source(info.Remote.String()))
	}
	l.c, c.Value = c, l
	sh.settle()
	l.serve()
}

// ConnInfo describes a client's connection.
type ConnInfo struct {
	Context context.Context     // Serve's, with the local address: the parent of those of requests that are served here
	Remote  net.Addr            // the client's address
	TLS     tls.ConnectionState // after the handshake
	// Now is the time of Decide's call, or up to a turn of the loop before: a batch of frames reads the clock once.
	Now   time.Time
	Value any // free for Decide, as for a cache of the connection, for which Decide is never called concurrently
}

// each calls f with the engine of each shard, under its mutex.
func (s *Server) each(f func(*engine.Engine)) {
	for _, sh := range s.shards {
		sh.lock()
		f(sh.e)
		sh.settle()
	}
}

// Retire takes an endpoint out of service: it gets no more requests, and its long-running ones end after grace.
func (s *Server) Retire(ep *engine.Endpoint, grace time.Duration) {
	s.each(func(e *engine.Engine) { e.Retire(ep, grace) })
}

// Eject moves requests without an answer that may be retried (Plan.Again, within Retries and Budget) from an unhealthy
// endpoint to another one. The rest continue. Upstream.Pick must not return the endpoint any more.
func (s *Server) Eject(ep *engine.Endpoint) { s.each(func(e *engine.Engine) { e.Eject(ep) }) }

// Leave stops upstreams from sharing connections: requests that wait for one choose again, sent ones continue. It calls
// on for each connection with their long-running requests; on must not block. Leave sees every earlier Pick.
func (s *Server) Leave(of func(*engine.Upstream) bool, on func(of *engine.Upstream, c *tls.Conn)) {
	s.each(func(e *engine.Engine) { e.Leave(of, func(u *engine.Upstream, c *engine.Conn) { on(u, linkOf(c).tls) }) })
}

// End ends an upstream's long-running requests on a connection, or all if of is nil; with watches none that is Finite.
func (s *Server) End(of *engine.Upstream, on *tls.Conn, watches bool) {
	s.each(func(e *engine.Engine) { e.EndOn(func(c *engine.Conn) bool { return linkOf(c).tls == on }, of, watches) })
}

// MakeRoom sends away some clients that are idle, of an address or, of nil, any: others wait for a place.
func (s *Server) MakeRoom(of *hold.Source) { s.each(func(e *engine.Engine) { e.MakeRoom(of) }) }

// SendAway sends GOAWAY to every client that has sent a request: requests in flight are finished, idle connections
// are closed. New connections are served, so a process that cannot serve well calls it repeatedly.
func (s *Server) SendAway() {
	for _, sh := range s.shards {
		for more := true; more; {
			sh.lock()
			more = sh.e.SendAway()
			sh.settle()
		}
	}
}

// EndLongRunning ends all long-running requests between two events within grace, like Shutdown, and later ones.
func (s *Server) EndLongRunning(grace time.Duration) {
	s.each(func(e *engine.Engine) { e.EndLongRunning(grace) })
}

// Shutdown sends GOAWAY to all clients, lets their requests finish and ends long-running ones within grace. It returns
// when no client is left, or with ctx's error when ctx ends; then it closes the rest.
func (s *Server) Shutdown(ctx context.Context, grace time.Duration) error {
	s.each(func(e *engine.Engine) { e.Drain(grace) })
	const every = 20 * time.Millisecond // short compared with any grace, long compared with the check
	hasClients := func(sh *shard) bool { return sh.e.Count.Conns[0].Load() > 0 }
	for slices.ContainsFunc(s.shards, hasClients) {
		select {
		case <-ctx.Done():
			s.each(func(e *engine.Engine) { e.CutAll(ctx.Err()) })
			return ctx.Err()
		case <-time.After(every):
		}
	}
	return nil
}

// metrics returns metrics that add up the counters of all shards at scrape time: working shards share nothing.
func metrics(shards []*shard) (all []prometheus.Collector) {
	type labels = prometheus.Labels
	show := func(name, help string, l labels, of func(n *engine.Counters) *atomic.Int64) {
		sum := func() (sum float64) {
			for _, sh := range shards {
				sum += float64(of(&sh.e.Count).Load())
			}
			return sum
		}
		opts := prometheus.Opts{Name: "fairlead_h2_" + name, Help: help, ConstLabels: l}
		if strings.HasSuffix(name, "_total") {
			all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts(opts), sum))
		} else {
			all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts), sum))
		}
	}
	for side, label := range [...]string{"client", "backend"} {
		show("connections", "HTTP/2 connections by side: client, backend.", labels{"side": label},
			func(n *engine.Counters) *atomic.Int64 { return &n.Conns[side] })
		const help = "GOAWAY frames by side of the connection (client, backend) and direction (sent, received)."
		sent, received := labels{"side": label, "direction": "sent"}, labels{"side": label, "direction": "received"}
		show("goaways_total", help, sent, func(n *engine.Counters) *atomic.Int64 { return &n.Sent[side] })
		show("goaways_total", help, received, func(n *engine.Counters) *atomic.Int64 { return &n.Received[side] })
	}
	for cause, label := range [...]string{"client", "backend", "limit", "protocol", "lane"} {
		const help = "Streams that were reset, by cause: client, backend, limit (concurrent streams), protocol, " +
			"lane (deadline, drain, panic)."
		show("resets_total", help, labels{"cause": label},
			func(n *engine.Counters) *atomic.Int64 { return &n.Resets[cause] })
	}
	show("streams", "Streams of clients that the engine has under way.",
		nil, func(n *engine.Counters) *atomic.Int64 { return &n.Streams })
	show("flood_closes_total", "Connections closed because the peer caused too much work "+
		"without requests (ENHANCE_YOUR_CALM).", nil, func(n *engine.Counters) *atomic.Int64 { return &n.Floods })
	show("panics_total", "Panics that the engine survived: each closed the connection that it was working for. "+
		"The log has the stack.", nil, func(n *engine.Counters) *atomic.Int64 { return &n.Panics })
	const buffered = "Memory for data that waits to be forwarded: bodies in streams, output of connections."
	show("buffered_bytes", buffered, labels{"where": "streams"},
		func(n *engine.Counters) *atomic.Int64 { return &n.Queued })
	show("buffered_bytes", buffered, labels{"where": "connections"},
		func(n *engine.Counters) *atomic.Int64 { return &n.Output })
	return all
}
