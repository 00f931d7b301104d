package engine

import "runtime/debug"

// Work is what one turn of an engine wants done. It is filled under the mutex and worked off without it.
type Work struct {
	Writes []Write // each ends with Conn.Wrote
	Closes []*Conn // to be closed
	calls  []call
}

// Write is output of a connection.
type Write struct {
	Conn *Conn  // whose it is
	Buf  []byte // until Conn.Wrote
	Err  error  // the driver's
	Left bool   // the driver's, too: it calls Wrote later
}

// Due accounts for a turn, and reports whether there is work.
func (e *Engine) Due() bool {
	e.report(reportStep)
	e.shed()
	return len(e.dirty) > 0 || len(e.calls) > 0
}

// Collect takes what there is to do; false: nothing.
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
		case c.flushing: // whoever is writing looks again
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

// Tell makes the calls that a turn owes to others. It is called without the mutex.
func (e *Engine) Tell(w *Work) {
	for i := range w.calls {
		e.tell(&w.calls[i])
		w.calls[i] = call{}
	}
}

func (e *Engine) tell(c *call) {
	defer func() {
		if v := recover(); v != nil { // the engine is none the worse for it
			e.Count.Panics.Add(1)
			e.Caught(v, debug.Stack())
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

// Wrote ends a write: the output may have grown meanwhile, and streams that waited for room go on.
func (c *Conn) Wrote(buf []byte, err error) {
	defer c.e.rescue(c)
	c.flushing = false
	c.e.buffers.Put(buf)
	if err != nil {
		c.written()
		c.e.cutOff(c, err)
		return
	}
	c.flushed()
	if len(c.out) > 0 || c.closing {
		c.touch()
	}
}

// More takes further output for who has just written; nil: there is none, and nobody writes any more.
func (c *Conn) More() []byte {
	if len(c.out) == 0 || c.cut || c.gone {
		return nil
	}
	c.flushing = true
	return c.take()
}
