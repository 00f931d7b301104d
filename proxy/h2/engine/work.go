package engine

import (
	"runtime/debug"
	"sync/atomic"
)

// Work is what the driver has to do after one turn of an engine. It is filled under the mutex, done without it.
type Work struct {
	Writes []Write // each must be followed by Conn.Wrote
	Closes []*Conn // to be closed
	calls  []call
}

// Write is output of a connection.
type Write struct {
	Conn *Conn  // the one to write to
	Buf  []byte // owned by the driver until Conn.Wrote
	Err  error  // set by the driver
	Left bool   // set by the driver, which calls Wrote later
}

// Due updates the memory accounting after a turn, and reports whether there is work.
func (e *Engine) Due() bool {
	e.report(reportStep)
	e.shed()
	return len(e.dirty) > 0 || len(e.calls) > 0
}

// Collect moves the pending work to w for the driver (shard.settle). It reports whether there is some.
func (e *Engine) Collect(w *Work) bool {
	clear(w.Writes)
	clear(w.Closes)
	w.Writes, w.Closes = w.Writes[:0], w.Closes[:0]
	for i, c := range e.dirty {
		e.dirty[i] = nil
		c.dirty = false
		switch {
		case c.gone:
		case c.cut:
			w.Closes = append(w.Closes, c)
		case c.flushing: // until Wrote, which touches it again
			c.weigh()
		case len(c.out) > 0:
			c.flushing = true
			w.Writes = append(w.Writes, Write{Conn: c, Buf: c.take()})
		case c.closing:
			w.Closes = append(w.Closes, c)
		}
	}
	e.dirty = e.dirty[:0]
	w.calls, e.calls = e.calls, w.calls[:0]
	if len(w.Writes)+len(w.Closes)+len(w.calls) > 0 {
		return true
	}
	e.report(reportStep)
	return false
}

// RunCalls runs the callbacks. It must be called without the mutex.
func (e *Engine) RunCalls(w *Work) {
	for i := range w.calls {
		e.runCall(&w.calls[i])
		w.calls[i] = call{}
	}
}

func (e *Engine) runCall(c *call) {
	defer func() {
		if v := recover(); v != nil { // the engine's state is not affected
			e.Count.Panics.Add(1)
			e.Caught(v, debug.Stack()) //fairlead:boundary after a panic
		}
	}()
	switch {
	case c.over:
		c.guest.Over.Store(true)
		c.guest.wake(down)
		c.guest.wake(up)
	case c.guest != nil:
		c.guest.wake(c.dir)
	case c.do != nil:
		c.do()
	case c.done != nil: // Plan.Done may be nil
		c.done(c.outcome)
	}
}

// Wrote ends a write. The output may have grown meanwhile, and waiting streams continue.
func (c *Conn) Wrote(buf []byte, err error) {
	defer c.e.rescue(c)
	c.flushing = false
	c.e.buffers.Put(buf)
	c.e.Count.Output.Add(-int64(c.inflight))
	c.inflight = 0
	c.weigh()
	switch {
	case err != nil && c.side == down && len(c.streams) > 0 && !c.closing:
		c.drained, c.flushing = true, true // what the server sent before it closed is read first: an answer, GOAWAY
		c.pool.serve()                     // who waits for this connection need not wait for its end
		return
	case err != nil:
		c.e.cutOff(c, err)
		return
	case c.closing:
		c.closingAt = c.e.now // the linger time begins here
	}
	c.e.pump(c)
	c.pool.serve()
	if len(c.out) > 0 || c.closing {
		c.touch()
	}
}

// Counters are the metrics of one engine. They are written under the mutex and may be read without.
type Counters struct {
	Conns    [2]atomic.Int64           // by side: clients, backends
	Streams  atomic.Int64              // of clients and guests
	Resets   [resetCauses]atomic.Int64 // by cause: client, backend, limit, protocol, lane
	Sent     [2]atomic.Int64           // GOAWAY, by side
	Received [2]atomic.Int64           // GOAWAY, by side
	Floods   atomic.Int64              // connections closed with ENHANCE_YOUR_CALM
	Queued   atomic.Int64              // bytes of chunks for bodies
	Panics   atomic.Int64              // survived panics
	Output   atomic.Int64              // bytes that the driver has collected and not yet written
}

// resetCause is why a stream was reset. One reset of a forwarded stream counts once, though both sides see RST_STREAM.
type resetCause uint8

const (
	resetByClient  resetCause = iota // the client sent RST_STREAM
	resetByBackend                   // the backend did
	resetByLimit                     // more streams than SETTINGS_MAX_CONCURRENT_STREAMS allows
	resetProtocol                    // a peer broke the protocol on the stream
	resetByEngine                    // a deadline, a drain, a handler's panic, an upload after its response
	resetCauses
)

func (n *Counters) reset(c resetCause) { n.Resets[c].Add(1) }
