package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
)

// Config is what a Server needs.
type Config struct {
	// Decide says what becomes of a request. It is called under the lock of a shard, so it must not block, nor call resume itself. If it
	// cannot decide without waiting it returns false and arranges that resume is called once, from another goroutine: the stream is
	// parked, other streams go on. The Plan's Done is called in any case.
	Decide func(c *ConnInfo, h *Head, resume func(Plan)) (Plan, bool)

	// Dial connects to an endpoint and finishes the TLS handshake with ALPN h2. It runs on its own goroutine and must obey ctx. The TCP
	// connection should be passed through wrap before it is handed to tls.Client: writes then never block the engine.
	Dial func(ctx context.Context, ep *Endpoint, wrap func(net.Conn) net.Conn) (*tls.Conn, error)
	// Closed hears that a connection which Dial returned has ended, once for each, on a goroutine of its own. nil: nobody listens.
	Closed func(ep *Endpoint, c *tls.Conn)

	MaxStreams     uint32        // streams per client's connection (--http2-max-streams-per-connection); 0: 250
	MaxHeaderBytes int           // of a field list, requests and responses; beyond it requests get 431; 0: 256 KiB
	IdleTimeout    time.Duration // a client's connection without streams is closed; 0: 3 min
	Shards         int           // engines, each with its own backend connections; 0: one per two processors, at least one
	Logger         *slog.Logger  // nil discards
	// Memory bounds what all connections of the process hold; Servers and others share one. nil: one of its own.
	Memory *hold.Bound
	// Metrics gets the metrics; a second Server needs a registerer of its own. nil: unregistered.
	Metrics prometheus.Registerer

	// For tests.
	stall    time.Duration // see engine.Config
	portable bool          // a reader goroutine per connection even where there is an event loop
}

func (c *Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

// shards leaves half of the processors to handshakes, handlers and the collector of garbage. Fewer shards batch more: each has
// connections of its own to every backend.
func (c *Config) shards() int {
	if c.Shards > 0 {
		return c.Shards
	}
	return max(1, runtime.GOMAXPROCS(0)/2)
}

// Server is the engine with its drivers. Run must be running while it serves: it moves the bytes and lets the timers run.
type Server struct {
	shards []*shard
	stir   chan struct{} // one slot: ticks are wanted sooner
	next   atomic.Uint32
	links  sync.WaitGroup
	cancel context.CancelFunc
	memory *hold.Bound
	log    *slog.Logger
}

// New returns a Server. Its Serve goes into http.Server.TLSNextProto["h2"], and its Listener around the server's.
func New(cfg Config) *Server {
	ctx, cancel := context.WithCancel(context.Background()) // ends with Run's
	if cfg.Memory == nil {
		cfg.Memory = hold.New(0)
	}
	s := &Server{cancel: cancel, stir: make(chan struct{}, 1), memory: cfg.Memory, log: cfg.logger()}
	pool := &buffers{}
	for range cfg.shards() {
		s.shards = append(s.shards, newShard(ctx, &cfg, &s.links, pool, s.stir))
	}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(newCollector(s.shards))
	}
	return s
}

// Run serves connections until ctx ends, then closes every connection at once and waits for what it started. It does the same, and returns an error, if connections
// cannot be waited for.
func (s *Server) Run(ctx context.Context) error {
	pace := engine.TickEvery
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	broken := make(chan error, len(s.shards))
	var loops sync.WaitGroup
	for _, sh := range s.shards {
		if sh.loop != nil {
			loops.Go(func() {
				if err := sh.loop.run(); err != nil {
					broken <- err
				}
			})
		}
	}
	for {
		select {
		case <-ctx.Done():
			s.end()
			loops.Wait()
			return nil
		case err := <-broken:
			s.end()
			loops.Wait()
			return err
		case <-s.stir:
			if pace > engine.TickEvery { // else the next tick comes in time, and would only be put off
				pace = engine.TickEvery
				ticker.Reset(pace)
			}
		case <-ticker.C:
			if next := s.tick(); next != pace {
				pace = next
				ticker.Reset(pace)
			}
		}
	}
}

// tick lets all timers run, and returns when the one that wants it soonest is to run again.
func (s *Server) tick() time.Duration {
	pace := time.Hour
	for _, sh := range s.shards {
		if p := sh.tick(); p > 0 {
			pace = min(pace, p)
		}
	}
	s.memory.Log(s.log)
	return pace
}

func (s *Server) end() {
	s.cancel()
	for _, sh := range s.shards {
		sh.end()
	}
	s.links.Wait()
	for _, sh := range s.shards {
		if sh.loop != nil {
			sh.loop.close()
		}
	}
}

var errServerEnded = errors.New("server ended")

// Listener wraps the TCP listener below TLS, so that writing to its connections never blocks the engine. Without it everything works,
// with one more goroutine per connection that has something to write. A connection that wraps another and has a method Wraps() net.Conn
// says that every byte passes it as it is: the engine then reads and writes the socket itself, and calls the wrapper's Close when the socket
// has been closed.
func (s *Server) Listener(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return wrapConn(c), nil
}

// Serve takes a client's connection over and returns when it has ended. It fits http.Server.TLSNextProto; the handler is only asked
// for its base context, requests go where Config.Decide says.
func (s *Server) Serve(hs *http.Server, conn *tls.Conn, h http.Handler) {
	ctx := context.Background()
	if b, ok := h.(interface{ BaseContext() context.Context }); ok {
		ctx = b.BaseContext() // what net/http made of Server.BaseContext and ConnContext
	}
	if hs != nil {
		ctx = context.WithValue(ctx, http.ServerContextKey, hs)
	}
	info := &ConnInfo{Remote: conn.RemoteAddr(), Local: conn.LocalAddr(), TLS: conn.ConnectionState()}
	info.ctx = context.WithValue(ctx, http.LocalAddrContextKey, info.Local)
	sh := s.shards[int(s.next.Add(1))%len(s.shards)]
	s.links.Add(1)
	defer s.links.Done()
	l := sh.newLink(conn)
	l.info = info
	sh.lock()
	if sh.ended {
		sh.settle()
		l.discard()
		return
	}
	l.attach(sh.e.AcceptClient())
	sh.settle()
	l.serve()
}

// ConnInfo is what Decide may know of the client's connection.
type ConnInfo struct {
	Remote net.Addr            // the client's address
	Local  net.Addr            // ours
	TLS    tls.ConnectionState // after the handshake
	// Value is free for Decide, which is never called twice at once for one connection: caches per connection live here.
	Value any

	ctx context.Context // what requests that are served here derive theirs from
}

// Context is what net/http made of Server.BaseContext and ConnContext.
func (c *ConnInfo) Context() context.Context {
	if c.ctx == nil {
		return context.Background()
	}
	return c.ctx
}

// Retire takes an endpoint out of service: it gets no further request, those it has are finished, long-running ones are ended after
// grace.
func (s *Server) Retire(ep *Endpoint, grace time.Duration) {
	for _, sh := range s.shards {
		sh.lock()
		sh.e.Retire(ep, grace)
		sh.settle()
	}
}

// Eject is told that an endpoint was found unhealthy while others are not: requests that have no answer from it yet and may be sent again (Plan.Again, within
// Retries and Budget) are sent elsewhere. The rest go on; Upstream.Pick sees to it that no new ones come.
func (s *Server) Eject(ep *Endpoint) {
	for _, sh := range s.shards {
		sh.lock()
		sh.e.Eject(ep)
		sh.settle()
	}
}

// Leave is told that upstreams share connections no more: their requests that wait for a shared one choose again, those that were sent go on. on is called for each
// connection that long-running ones are on; it must not block. What was picked before Leave is called is seen by it.
func (s *Server) Leave(of []*Upstream, on func(of *Upstream, c *tls.Conn)) {
	set := make(map[*Upstream]bool, len(of))
	for _, u := range of {
		set[u] = true
	}
	for _, sh := range s.shards {
		sh.lock()
		sh.e.Leave(set, func(u *Upstream, c *engine.Conn) { on(u, linkOf(c).tls) })
		sh.settle()
	}
}

// End ends an upstream's long-running requests on one connection, which others go on to use.
func (s *Server) End(of *Upstream, on *tls.Conn) {
	for _, sh := range s.shards {
		sh.lock()
		sh.e.EndOn(func(c *engine.Conn) bool { return linkOf(c).tls == on }, of)
		sh.settle()
	}
}

// SendAway asks every client that has sent a request to open its next connection elsewhere (GOAWAY): what is under way goes on, idle connections are closed. New
// connections are served, so whoever cannot serve well calls it again and again.
func (s *Server) SendAway() {
	for _, sh := range s.shards {
		for more := true; more; {
			sh.lock()
			more = sh.e.SendAway()
			sh.settle()
		}
	}
}

// EndLongRunning ends the long-running requests of RoundTrip's callers, as Shutdown ends those of clients: cleanly, between two events.
func (s *Server) EndLongRunning() {
	for _, sh := range s.shards {
		sh.lock()
		sh.e.EndGuests(ReasonDrain)
		sh.settle()
	}
}

// Shutdown asks all clients to go (GOAWAY), lets their requests finish and ends long-running ones after grace. It returns when no client
// is left, or with ctx's error when ctx ends; what is left then is closed.
func (s *Server) Shutdown(ctx context.Context, grace time.Duration) error {
	for _, sh := range s.shards {
		sh.lock()
		sh.e.Drain(grace)
		sh.settle()
	}
	const every = 20 * time.Millisecond // short against any grace, long against the work of looking
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		n := int64(0)
		for _, sh := range s.shards {
			n += sh.e.Count.Conns[0].Load() // clients
		}
		if n == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			for _, sh := range s.shards {
				sh.cutAll(ctx.Err())
			}
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
