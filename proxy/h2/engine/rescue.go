package engine

import (
	"errors"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"

	"golang.org/x/net/http2"
)

// A panic under the shard's mutex ends the connection on whose behalf the engine worked, and whichever it was writing a frame to: what that one was sent may be half a frame.
// The rest of the engine is what it was before the turn, but for memory that is kept for reuse: what was being freed may be in use, so none of it is used again.

var errPanicked = errors.New("this process made a mistake")

// rescue is deferred where the engine begins to work for a connection. c is nil where it is nobody's.
func (e *Engine) rescue(c *Conn) {
	if v := recover(); v != nil {
		e.recovered(c, v)
	}
}

// rescueStream is rescue where the engine works for one stream. What a guest asks for has no connection that could end.
func (e *Engine) rescueStream(s *stream) {
	if v := recover(); v != nil {
		e.recovered(s.leg[up], v)
		if s.guest != nil {
			e.bury(s)
		}
	}
}

// recovered goes on after a panic. Without a driver, that is in the engine's own tests, it does not.
func (e *Engine) recovered(c *Conn, v any) {
	if e.Caught == nil {
		panic(v)
	}
	e.Count.Panics.Add(1)
	e.caught(v)
	w := e.writing
	e.writing = nil
	e.dropSpares()
	if c != nil {
		e.fell(c)
	}
	if w != nil && w != c {
		e.fell(w)
	}
	e.dropSpares()
}

// caught has the driver told of a panic.
func (e *Engine) caught(v any) {
	stack := debug.Stack()
	e.after(func() { e.Caught(v, stack) })
}

// fell ends a connection after a panic. If that cannot be done in order, it is done by force.
func (e *Engine) fell(c *Conn) {
	forced := c.closing // it is what panicked
	c.cut = true
	if !forced {
		func() {
			defer func() {
				if v := recover(); v != nil {
					forced = true
					e.Count.Panics.Add(1)
					e.caught(v)
				}
			}()
			e.close(c, errPanicked)
		}()
	}
	if forced {
		e.forsake(c)
	}
	c.touch()
}

// forsake takes a connection's streams out of all tables, without asking anybody anything. Nothing is freed for reuse.
func (e *Engine) forsake(c *Conn) {
	c.closing, c.closingAt = true, e.now
	c.in, c.block, c.left, c.data, c.ready = nil, nil, 0, dataFrame{}, list{}
	if c.pool != nil {
		c.pool.conns = slices.DeleteFunc(c.pool.conns, func(o *Conn) bool { return o == c })
	}
	for _, id := range slices.Sorted(maps.Keys(c.streams)) {
		s := c.streams[id]
		delete(c.streams, id)
		if s != nil {
			e.bury(s)
		}
	}
}

// rescueOrphan is rescue for one stream of a connection that is being closed: the others have still to be.
func (e *Engine) rescueOrphan(s *stream) {
	if v := recover(); v != nil {
		e.recovered(nil, v)
		e.bury(s)
	}
}

// bury takes a stream off its connections and pays what is owed for it.
func (e *Engine) bury(s *stream) {
	defer func() {
		if v := recover(); v != nil { // its own lists are broken: it stays where it is
			e.caught(v)
		}
	}()
	for side, c := range s.leg {
		if c == nil {
			continue
		}
		delete(c.streams, s.id[side])
		c.idleSince = e.now
		if !c.closing {
			c.writeReset(s.id[side], http2.ErrCodeInternal)
			c.rememberReset(s.id[side])
		}
	}
	e.Count.Streams.Add(-1)
	s.blame(ReasonAbort, errPanicked)
	if s.picked && s.ep != nil && s.ep.Release != nil {
		e.after(s.ep.Release)
	}
	if s.decided && s.plan.Done != nil {
		e.calls = append(e.calls, call{done: s.plan.Done, outcome: e.outcome(s)})
	}
	if s.guest != nil {
		e.endGuest(s, &Failure{Outcome: e.outcome(s)})
	}
	e.farewell(s)
	if t := s.ticket; t != nil {
		t.s, t.head = nil, nil
	}
	if l := s.local; l != nil {
		l.s = nil
		e.stopped(l)
	}
	s.leg, s.local, s.picked, s.decided = [2]*Conn{}, nil, false, false
	for d := range s.half {
		e.unqueue(s, dir(d))
	}
	for _, n := range []*node{&s.timer, &s.wait, &s.half[up].ready, &s.half[down].ready} {
		n.unlink()
	}
}

// accepts asks Plan.Accept. false: it panicked, and the stream is gone with its client's connection, not with that of the backend, which has others' streams.
func (e *Engine) accepts(s *stream, status int) (h http.Handler, ok bool) {
	accept := s.sending.accept
	if accept == nil {
		return nil, true
	}
	defer e.rescueStream(s)
	return accept(status), true
}
