package engine

import (
	"errors"
	"net/http"
	"runtime/debug"
	"slices"

	"golang.org/x/net/http2"
)

// A panic under the shard's mutex closes the connection that the engine was working for, and the connection to which it
// was writing a frame: its output may end with half a frame. The rest of the engine is in its state before the turn,
// except for the free lists: an object that was being freed may still be in use, so all free lists are dropped.

var errPanicked = errors.New("internal error in this process")

// rescue must be deferred where the engine begins to work for a connection. A nil c means that the work is for none.
func (e *Engine) rescue(c *Conn) {
	if v := recover(); v != nil {
		e.recovered(c, v)
	}
}

// rescueStream is rescue where the engine works for one stream. A guest's, without a connection to close, is dropped.
func (e *Engine) rescueStream(s *stream) {
	if v := recover(); v != nil {
		e.recovered(s.leg[up], v)
		if s.guest != nil {
			s.dropStream()
		}
	}
}

// recovered handles a panic. Without Caught, that is in the engine's own tests, it panics again.
func (e *Engine) recovered(c *Conn, v any) {
	if e.Caught == nil {
		panic(v)
	}
	e.caught(v)
	w := e.writing
	e.writing = nil
	e.dropSpares()
	if c != nil {
		e.closePanicked(c)
	}
	if w != nil && w != c {
		e.closePanicked(w)
	}
	e.dropSpares()
}

func (e *Engine) caught(v any) {
	e.Count.Panics.Add(1)
	stack := debug.Stack() //fairlead:boundary after a panic
	e.callLater(func() { e.Caught(v, stack) })
}

// closePanicked closes a connection after a panic, by force if closing it properly panics, too.
func (e *Engine) closePanicked(c *Conn) {
	defer c.touch()
	c.cut, c.why = true, ReasonAbort
	if c.closing { // closing it is what panicked
		e.abandon(c)
		return
	}
	defer func() {
		if v := recover(); v != nil {
			e.caught(v)
			e.abandon(c)
		}
	}()
	e.close(c, errPanicked)
}

// abandon removes a connection's streams from all tables without calling anything else. It frees nothing for reuse.
func (e *Engine) abandon(c *Conn) {
	c.closing, c.closingAt = true, e.now
	c.in, c.block, c.left, c.data, c.ready = nil, nil, 0, dataFrame{}, list{}
	if c.pool != nil {
		c.pool.conns = slices.DeleteFunc(c.pool.conns, func(o *Conn) bool { return o == c })
	}
	for s := range c.ordered(all) {
		s.dropStream()
	}
	clear(c.streams)
}

func (s *stream) dropStream() {
	defer func() {
		if v := recover(); v != nil { // the stream's own lists are broken: it stays where it is
			s.e.caught(v)
		}
	}()
	for side, c := range s.leg {
		if c == nil {
			continue
		}
		c.streamEnded(s.id[side], &s.half[side])
		delete(c.streams, s.id[side])
		c.idleSince = s.e.now
		if !c.closing {
			c.writeReset(s.id[side], http2.ErrCodeInternal)
			c.rememberReset(s.id[side])
		}
	}
	s.e.Count.Streams.Add(-1)
	s.blame(ReasonAbort, errPanicked)
	if s.picked {
		s.e.callLater(s.ep.Release)
	}
	s.e.calls = append(s.e.calls, call{done: s.plan.Done, outcome: s.outcome()})
	if s.guest != nil {
		s.endGuest(&Failure{Outcome: s.outcome()})
	}
	s.notifyGuest()
	if t := s.ticket; t != nil {
		t.s, t.head, t.end = nil, nil, s.outcome()
	}
	s.stopLocal()
	s.picked, s.plan.Done = false, nil
	s.timer.unlink()
	s.wait.unlink()
	s.countHead(0)
	s.unqueueAll() // before the client's connection is forgotten, which counts what waits
	s.leg = [2]*Conn{}
}

// accepts calls Plan.Accept. It reports false after a panic: the stream and its client's connection
// are closed then, but not the backend's connection, which carries others' streams.
func (s *stream) accepts(status int, leads bool) (h http.Handler, ok bool) {
	if s.sending.accept == nil {
		return nil, true
	}
	defer s.e.rescueStream(s)
	return s.sending.accept(status, leads), true
}
