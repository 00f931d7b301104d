package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"
)

// shard is one engine with the mutex that guards it. Clients' connections are spread over the shards; each shard has its own
// connections to the backends, so that a request never crosses shards.
type shard struct {
	mu  sync.Mutex // guards e and everything reachable from it, and the links' fields that say so
	e   *engine
	log *slog.Logger

	ctx     context.Context // ends when the server ends: for dials
	dial    func(ctx context.Context, ep *Endpoint, wrap func(net.Conn) net.Conn) (*tls.Conn, error)
	closed  func(ep *Endpoint, c *tls.Conn)
	started time.Time // the engine's clock counts from here
	pool    *buffers
	batches sync.Pool
	links   *sync.WaitGroup // counts links and what they started
	loop    *loop           // nil: every link has a goroutine
	ended   bool            // no connection is taken any more; guarded by mu
	resumed resumptions
}

// dialTimeout bounds a dial and its handshake when Config.Dial does not: a request should not wait longer for a connection.
const dialTimeout = 10 * time.Second

func newShard(ctx context.Context, cfg *Config, links *sync.WaitGroup, bufs *buffers) *shard {
	sh := &shard{log: cfg.logger(), ctx: ctx, dial: cfg.Dial, closed: cfg.Closed, started: time.Now(), pool: bufs, links: links, e: newEngine(cfg.limits())}
	if !cfg.portable {
		if lp, err := newLoop(sh); err == nil {
			sh.loop = lp
		} else if !errors.Is(err, errors.ErrUnsupported) {
			sh.log.Warn("serving without an event loop", "err", err)
		}
	}
	sh.batches.New = func() any { return &batch{} }
	sh.e.memory = cfg.Memory
	sh.e.decide = cfg.Decide
	sh.e.resume = sh.resume
	sh.e.caught = sh.caught
	sh.e.taken = func(c *conn) uint64 {
		if c.link == nil || c.link.raw == nil {
			return 0
		}
		return c.link.raw.taken()
	}
	sh.e.unread = func(c *conn) bool { return c.link != nil && c.link.raw != nil && c.link.raw.unread() }
	sh.e.serve = func(l *local) func() {
		l.sh, l.cond.L = sh, &sh.mu
		return func() {
			l.prepare()
			sh.links.Go(l.run)
		}
	}
	sh.e.dial = func(p *pool) func() { //nolint:contextcheck // dials end with the shard's own ctx
		return func() { sh.links.Go(func() { sh.connect(p) }) }
	}
	return sh
}

// lock takes the mutex and advances the engine's clock: once per batch of frames, not per frame.
func (sh *shard) lock() {
	now := time.Since(sh.started)
	sh.mu.Lock()
	sh.e.now = max(sh.e.now, now)
}

// batch is what one turn of an engine wants done. It is filled under the mutex and worked off without it.
type batch struct {
	writes []write
	closes []*link
	calls  []call
}

type write struct {
	c    *conn
	buf  []byte
	err  error
	left bool // the socket is full: a goroutine of the link's own goes on
}

// settle does what the engine wants done, and releases the mutex. Output is written first: what waits for the network should not wait
// for a log line.
func (sh *shard) settle() {
	e := sh.e
	e.report(reportStep)
	e.shed()
	if len(e.dirty) == 0 && len(e.calls) == 0 {
		sh.mu.Unlock()
		return
	}
	b := sh.batches.Get().(*batch)
	for b.collect(e) {
		sh.mu.Unlock()
		for i := range b.writes {
			w := &b.writes[i]
			w.left, w.err = w.c.link.write(w.buf)
		}
		b.run(sh)
		sh.mu.Lock()
		b.written()
	}
	e.report(reportStep)
	sh.mu.Unlock()
	sh.batches.Put(b)
}

// collect takes what there is to do; false: nothing.
func (b *batch) collect(e *engine) bool {
	for i, c := range e.dirty {
		e.dirty[i] = nil
		c.dirty = false
		switch {
		case c.gone || c.link == nil:
		case c.cut:
			b.closes = append(b.closes, c.link)
		case c.flushing: // whoever is writing looks again
			c.weigh()
		case len(c.out) > 0:
			c.flushing = true
			b.writes = append(b.writes, write{c: c, buf: c.take()})
		case c.closing:
			b.closes = append(b.closes, c.link)
		}
	}
	e.dirty = e.dirty[:0]
	b.calls, e.calls = e.calls, b.calls[:0]
	return len(b.writes) > 0 || len(b.closes) > 0 || len(b.calls) > 0
}

func (b *batch) run(sh *shard) {
	for i, l := range b.closes {
		l.shut()
		b.closes[i] = nil
	}
	b.closes = b.closes[:0]
	for i := range b.calls {
		sh.call(&b.calls[i])
		b.calls[i] = call{}
	}
}

func (sh *shard) call(c *call) {
	defer func() {
		if v := recover(); v != nil { // the engine is none the worse for it
			sh.e.count.panics.Add(1)
			sh.say(v, debug.Stack())
		}
	}()
	switch {
	case c.over:
		c.guest.end()
	case c.guest != nil:
		c.guest.wake(c.dir)
	case c.do != nil:
		c.do()
	default:
		c.done(c.outcome)
	}
}

// caught has a panic of the engine logged. The shard's mutex is held.
func (sh *shard) caught(v any, stack []byte) { sh.e.after(func() { sh.say(v, stack) }) }

func (sh *shard) say(v any, stack []byte) {
	sh.log.Error("frame lane panicked", "panic", fmt.Sprint(v), "stack", string(stack))
}

// written tells the engine what became of the output.
func (b *batch) written() {
	for i := range b.writes {
		w := &b.writes[i]
		if !w.left {
			w.c.finishWrite(w.buf, w.err)
		}
		*w = write{}
	}
	b.writes = b.writes[:0]
}

// finishWrite ends a write: the output may have grown meanwhile, and streams that waited for room go on.
func (c *conn) finishWrite(buf []byte, err error) {
	c.wrote(buf, err)
	c.link.room.Broadcast()
	if c.link.paused.Load() && !c.over() {
		c.link.loop.unpause(c.link)
	}
}

func (c *conn) wrote(buf []byte, err error) {
	defer c.e.rescue(c)
	c.flushing = false
	c.e.buffers.Put(buf)
	if err != nil {
		c.written()
		c.cut = true
		c.e.lose(c, err)
		c.touch()
	} else {
		c.flushed()
		if len(c.out) > 0 || c.closing {
			c.touch()
		}
	}
}

// tick lets the engine's timers run.
func (sh *shard) tick() {
	now := time.Since(sh.started)
	sh.mu.Lock()
	sh.e.overslept(now)
	sh.e.tick(now)
	if sh.e.rests() {
		sh.pool.out.drop()
	}
	sh.settle()
}

// connect dials for a pool and serves the connection until it ends.
func (sh *shard) connect(p *pool) {
	ctx, cancel := context.WithTimeout(sh.ctx, dialTimeout)
	tc, err := sh.dial(ctx, p.ep, wrapConn)
	cancel()
	if err == nil && sh.closed != nil {
		defer sh.closed(p.ep, tc)
	}
	if err == nil && tc.ConnectionState().NegotiatedProtocol != "h2" {
		_ = tc.Close()
		err = errors.New("backend does not speak HTTP/2")
	}
	if err != nil {
		sh.lock()
		sh.e.dialFailed(p, err)
		sh.settle()
		return
	}
	l := sh.newLink(tc)
	sh.lock()
	if sh.ended {
		sh.e.dialFailed(p, errServerEnded)
		sh.settle()
		l.discard()
		return
	}
	l.attach(sh.e.connected(p))
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
	for _, c := range append([]*conn(nil), sh.e.conns...) {
		c.cut = true
		sh.e.lose(c, err)
		c.touch()
	}
	sh.e.cutGuests(err)
	sh.settle()
}

// clients counts the clients' connections.
func (sh *shard) clients() int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := 0
	for _, c := range sh.e.conns {
		if c.side == up {
			n++
		}
	}
	return n
}
