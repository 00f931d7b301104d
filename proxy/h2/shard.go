package h2

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// shard is one engine with its mutex. Clients are spread over them, and each has its own connections to backends.
type shard struct {
	mu  sync.Mutex // guards e and everything reachable from it, and the fields of links whose comments say so
	e   *engine.Engine
	cfg *Config

	ctx     context.Context // ends with the server: for dials
	started time.Time       // zero of the engine's clock
	now     time.Time       // of the last lock; guarded by mu
	pool    *buffers
	work    sync.Pool       // of *engine.Work
	links   *sync.WaitGroup // counts links and the goroutines they started
	loop    *loop
	ended   bool          // accepts no more connections; guarded by mu
	pace    time.Duration // the present interval of ticks; 0 means that none comes; guarded by mu
	ticks   *time.Timer   // of the next tick
	resumed resumptions
}

func newShard(ctx context.Context, cfg *Config, links *sync.WaitGroup, bufs *buffers) *shard {
	sh := &shard{cfg: cfg, ctx: ctx, started: time.Now(), pool: bufs, links: links}
	sh.ticks, sh.pace = time.NewTimer(engine.TickEvery), engine.TickEvery
	sh.e = engine.New(engine.Config{
		Decide: func(c *engine.Conn, h *wire.Head, resume func(engine.Plan)) (engine.Plan, bool) {
			info := linkOf(c).info
			info.Now = sh.now
			return cfg.Decide(info, h, resume)
		},
		Resume: sh.resume, Serve: sh.local, Clock: time.Now,
		Taken:  func(c *engine.Conn) (uint64, bool, time.Duration) { return linkOf(c).raw.taken() },
		Unread: func(c *engine.Conn) bool { return linkOf(c).raw.unread() },
		Dial: func(ep *engine.Endpoint, dialled func(error) *engine.Conn) {
			links.Go(func() { sh.connect(ep, dialled) })
		},
		Caught: func(v any, stack []byte) {
			//fairlead:boundary after a panic
			cfg.Logger.Error("engine panicked", "panic", fmt.Sprint(v), "stack", string(stack))
		},
		Memory: cfg.Memory, MaxStreams: cfg.MaxStreams,
	})
	sh.loop = newLoop(sh)
	sh.work.New = func() any { return &engine.Work{} }
	return sh
}

// lock takes the mutex and advances the engine's clock, once per batch of frames.
func (sh *shard) lock() {
	now := time.Now()
	sh.mu.Lock()
	sh.now = now
	sh.e.Advance(now.Sub(sh.started))
}

// settle does the engine's pending work, output before callbacks such as log lines, and releases the mutex.
func (sh *shard) settle() {
	e := sh.e
	if sh.pace != engine.TickEvery { // the next tick comes sooner if the engine is no longer at rest
		if p := e.Pace(); p > 0 && (sh.pace == 0 || sh.pace > p) {
			sh.pace = engine.TickEvery
			sh.ticks.Reset(sh.pace)
		}
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
		e.RunCalls(w)
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

// guarded is a *local or a *guest.
type guarded interface{ Recovered(v any) }

// leave is settle for a turn of a handler, or of a guest's caller. Defer it, so that a panic releases the mutex.
func (sh *shard) leave(of guarded) {
	if v := recover(); v != nil {
		of.Recovered(v)
	}
	sh.settle()
}

// turn runs f under the mutex, for a handler or a guest's caller.
func (sh *shard) turn(of guarded, f func()) {
	sh.lock()
	defer sh.leave(of)
	f()
}

// runTimers runs the engine's timers until the server ends, and sets the time of each next tick.
func (sh *shard) runTimers() {
	var ahead time.Duration // how much further than the engine's clock the wall clock has gone
	for {
		select {
		case <-sh.ctx.Done():
			return
		case <-sh.ticks.C:
		}
		at := time.Now()
		now, was := at.Sub(sh.started), ahead
		ahead = at.Round(0).Sub(sh.started.Round(0)) - now
		sh.mu.Lock()
		sh.e.Overslept(now, max(0, ahead-was).Truncate(time.Millisecond)) // less is the clocks' jitter
		sh.e.Tick(now)
		if sh.e.Rests() {
			sh.pool.out.Drop()
		}
		if sh.pace = sh.e.Pace(); sh.pace > 0 {
			sh.ticks.Reset(sh.pace)
		}
		sh.settle()
		sh.e.Memory.Log(sh.cfg.Logger)
	}
}

// connect dials an endpoint and serves the connection until it ends.
func (sh *shard) connect(ep *engine.Endpoint, dialled func(error) *engine.Conn) {
	tc, closed, err := sh.cfg.Dial(sh.ctx, ep)
	var l *link
	if err == nil {
		defer closed()
		l, err = sh.newLink(tc)
	}
	sh.lock()
	if err == nil && sh.ended {
		err = errServerEnded
		defer l.discard()
	}
	if err != nil {
		dialled(err)
		sh.settle()
		return
	}
	l.c = dialled(nil)
	l.c.Value = l
	sh.settle()
	l.serve()
}

// resumptions are the plans of parked streams that wait to be applied. There is at most one per stream.
type resumptions struct {
	mu   sync.Mutex // guards the following fields; taken without the shard's mutex, or within it
	list []func()
	busy bool // a goroutine is applying them
}

// resume applies a plan, or leaves that to the goroutine that applies others: thousands may wait for one answer. So the
// loop gets the shard's mutex after each of its turns, and their output is written together.
func (sh *shard) resume(apply func()) {
	r := &sh.resumed
	r.mu.Lock()
	r.list = append(r.list, apply)
	busy := r.busy
	r.busy = true
	r.mu.Unlock()
	if busy {
		return
	}
	for list := r.take(); list != nil; list = r.take() {
		for turn := range slices.Chunk(list, turnPlans) {
			sh.lock()
			for _, apply := range turn {
				apply()
			}
			sh.settle()
		}
	}
}

const turnPlans = 64 // how many plans are applied in one turn: as many as requests of a connection in a turn

// take returns all pending plans. Nil means none: the next resume call applies its own.
func (r *resumptions) take() []func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list, r.busy = nil, len(list) > 0
	return list
}
