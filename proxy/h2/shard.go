package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
)

// shard is one engine with the mutex that guards it. Clients' connections are spread over the shards; each shard has its own
// connections to the backends, so that a request never crosses shards.
type shard struct {
	mu  sync.Mutex // guards e and everything reachable from it, and the links' fields that say so
	e   *engine.Engine
	log *slog.Logger

	ctx     context.Context // ends when the server ends: for dials
	dial    func(ctx context.Context, ep *Endpoint, wrap func(net.Conn) net.Conn) (*tls.Conn, error)
	closed  func(ep *Endpoint, c *tls.Conn)
	started time.Time // the engine's clock counts from here
	pool    *buffers
	work    sync.Pool       // of *engine.Work
	links   *sync.WaitGroup // counts links and what they started
	loop    *loop           // nil: every link has a goroutine
	ended   bool            // no connection is taken any more; guarded by mu
	pace    time.Duration   // of ticks, as the engine wanted it last; guarded by mu
	stirred chan<- struct{} // one slot: it wants them sooner
	resumed resumptions
}

// dialTimeout bounds a dial and its handshake when Config.Dial does not: a request should not wait longer for a connection.
const dialTimeout = 10 * time.Second

func newShard(ctx context.Context, cfg *Config, links *sync.WaitGroup, bufs *buffers, stirred chan<- struct{}) *shard {
	sh := &shard{log: cfg.logger(), stirred: stirred, pace: engine.TickEvery, ctx: ctx, dial: cfg.Dial, closed: cfg.Closed, started: time.Now(), pool: bufs, links: links}
	sh.e = engine.New(engine.Config{
		Decide: func(c *engine.Conn, h *Head, resume func(Plan)) (Plan, bool) {
			return cfg.Decide(linkOf(c).info, h, resume)
		},
		Resume: sh.resume, Serve: sh.local, Caught: sh.caught, Taken: taken, Unread: unread, Clock: time.Now,
		Dial: func(ep *Endpoint, dialled func(error) *engine.Conn) { //nolint:contextcheck // dials end with the shard's own ctx
			links.Go(func() { sh.connect(ep, dialled) })
		},
		Memory: cfg.Memory, MaxStreams: cfg.MaxStreams, MaxHeader: cfg.MaxHeaderBytes, Idle: cfg.IdleTimeout, Stall: cfg.stall,
	})
	if !cfg.portable {
		if lp, err := newLoop(sh); err == nil {
			sh.loop = lp
		} else if !errors.Is(err, errors.ErrUnsupported) {
			sh.log.Warn("serving without an event loop", "err", err)
		}
	}
	sh.work.New = func() any { return &engine.Work{} }
	return sh
}

// lock takes the mutex and advances the engine's clock: once per batch of frames, not per frame.
func (sh *shard) lock() {
	now := time.Since(sh.started)
	sh.mu.Lock()
	sh.e.Advance(now)
}

// settle does what the engine wants done, and releases the mutex. Output is written first: what waits for the network should not wait
// for a log line.
func (sh *shard) settle() {
	e := sh.e
	if sh.pace != engine.TickEvery {
		sh.stir()
	}
	if !e.Due() {
		sh.mu.Unlock()
		return
	}
	w := sh.work.Get().(*engine.Work)
	for e.Collect(w) {
		sh.mu.Unlock()
		for i := range w.Writes {
			o := &w.Writes[i]
			o.Left, o.Err = linkOf(o.Conn).write(o.Buf)
		}
		for _, c := range w.Closes {
			linkOf(c).shut()
		}
		e.Tell(w)
		sh.mu.Lock()
		for i := range w.Writes {
			if o := &w.Writes[i]; !o.Left {
				linkOf(o.Conn).finishWrite(o.Buf, o.Err)
			}
		}
	}
	sh.mu.Unlock()
	sh.work.Put(w)
}

// caught logs a panic of the engine.
func (sh *shard) caught(v any, stack []byte) {
	sh.log.Error("engine panicked", "panic", fmt.Sprint(v), "stack", string(stack))
}

// stir has the next tick come sooner if the engine rests no longer.
func (sh *shard) stir() {
	if p := sh.e.Pace(); p == 0 || sh.pace > 0 && sh.pace <= p {
		return
	}
	sh.pace = engine.TickEvery
	select {
	case sh.stirred <- struct{}{}:
	default:
	}
}

// tick lets the engine's timers run, and returns when they want to run again.
func (sh *shard) tick() time.Duration {
	now := time.Since(sh.started)
	sh.mu.Lock()
	sh.e.Overslept(now)
	sh.e.Tick(now)
	if sh.e.Rests() {
		sh.pool.out.drop()
	}
	pace := sh.e.Pace()
	sh.pace = pace
	sh.settle()
	return pace
}

// connect dials and serves the connection until it ends.
func (sh *shard) connect(ep *Endpoint, dialled func(error) *engine.Conn) {
	ctx, cancel := context.WithTimeout(sh.ctx, dialTimeout)
	tc, err := sh.dial(ctx, ep, wrapConn)
	cancel()
	if err == nil && sh.closed != nil {
		defer sh.closed(ep, tc)
	}
	if err == nil && tc.ConnectionState().NegotiatedProtocol != "h2" {
		_ = tc.Close()
		err = errors.New("backend does not speak HTTP/2")
	}
	if err != nil {
		sh.lock()
		dialled(err)
		sh.settle()
		return
	}
	l := sh.newLink(tc)
	sh.lock()
	if sh.ended {
		dialled(errServerEnded)
		sh.settle()
		l.discard()
		return
	}
	l.attach(dialled(nil))
	sh.settle()
	l.serve()
}

// end closes all connections at once and takes no further ones.
func (sh *shard) end() {
	sh.lock()
	sh.ended = true
	sh.settle()
	sh.cutAll(errServerEnded)
}

// cutAll closes all connections at once.
func (sh *shard) cutAll(err error) {
	sh.lock()
	sh.e.CutAll(err)
	sh.settle()
}
