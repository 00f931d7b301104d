package engine

import (
	"errors"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/hold"
)

// What connections hold counts against the process's bound. The counting is local to an engine,
// because each chunk and each write changes it; the bound is updated in steps.

const reportStep = 64 << 10 // the largest difference between an engine's count and the bound's

// report updates the bound if the engine's count has changed by at least step.
func (e *Engine) report(step int64) {
	if d := e.held - e.reported; d >= step || d <= -step {
		e.Memory.Add(d)
		e.reported = e.held
	}
}

// weigh counts what the connection itself holds: output, which exists twice while it is written (plain and encrypted),
// the frame or field block that is being received, input that waits for a turn or for TLS, and waiting requests' heads.
func (c *Conn) weigh() {
	heads := c.blockSize() + c.heads
	n := len(c.out) + 2*c.inflight + len(c.in) + c.left + c.Sealed + heads
	c.e.held += int64(n - c.weight)
	c.weight = n
	if d := heads - c.shared; d > sharedStep || d < -sharedStep {
		c.Source.Add(int64(d))
		c.shared = heads
	}
}

// blockSize is what the field block being received holds: its buffer may grow to twice as much, or be a kept one.
func (c *Conn) blockSize() int { return max(2*len(c.block), cap(c.block)) }

// sharedStep is what a connection's heads may hold without their source's counter, to which all shards write.
const sharedStep = 16 << 10

// handled is how often a head exists for a handler: the engine's fields, an http.Header, those decided about and sent.
// fieldSize is what one more copy of a field takes, whose text is shared. openStream is what an answered stream takes.
const handled, fieldSize, openStream = 3, 40, 2 << 10

// crowded reports whether n more bytes are too many for the heads of a connection: a quarter of its source's share.
func (c *Conn) crowded(n int) bool {
	n += c.blockSize() + c.heads
	return c.side == up && n > hold.Least/4 && int64(n) > c.e.Memory.Short() &&
		(int64(n) > c.e.Memory.Share()/4 || c.Source.Greedy())
}

// headLimit is the largest field list accepted on a side. Backends' answers need less than requests with groups.
func (e *Engine) headLimit(side dir) int {
	const answers = 256 << 10
	return [2]int{e.fields.Max, min(e.fields.Max, answers)}[side]
}

// weigh counts the stream's queues for the client's connection. Call it when they have changed.
func (e *Engine) weigh(s *stream) {
	c, n := s.leg[up], (s.half[up].q.chunks+s.half[down].q.chunks)*chunkSize+s.tail
	more := n - s.held
	s.held = n
	if c == nil || more == 0 {
		return
	}
	c.queued += int(more)
	if more < 0 {
		c.giveCredit() // credit may have been withheld
	}
}

// keepTrailers stores the response's trailers until its body was sent; nil removes them. They count like the body.
func (s *stream) keepTrailers(list []hpack.HeaderField) {
	n := s.lent
	for i := range list {
		n += int32(list[i].Size()) // at most maxHeader together
	}
	s.e.held += int64(n - s.tail)
	s.trailers, s.tail = list, n
	s.e.weigh(s)
}

// greedy reports whether a connection holds more than its share: then its peer gets no credit and no new streams.
func (c *Conn) greedy() bool {
	n := int64(c.queued + c.weight)
	return n > hold.Least && n > c.e.Memory.Share()
}

// largest returns the largest holder: a connection, or a guest, for one over HTTP/1.1. Nil: none is worth closing.
func (e *Engine) largest() (most *Conn, guest *stream) {
	n := min(hold.Least, int(4*e.Memory.Room())/(2*len(e.conns)+1)) // many may hold little each
	for _, c := range e.conns {
		if k := c.queued + c.weight; k > n && !c.cut {
			most, n = c, k
		}
	}
	for at := e.guests.first; at != nil; at = at.next {
		if k := int(at.s.held); k > n {
			guest, n = at.s, k
		}
	}
	return most, guest
}

var errMemory = errors.New("closed to free memory: it held the most")

// shed closes the largest holders while the bound is exceeded: at once, because within a tick
// hundreds of megabytes can come. If no holder is large, it looks again when more is held, or at
// the next tick: to look at thousands of connections in every turn takes longer than most turns.
func (e *Engine) shed() {
	for e.Memory.Over() > 0 && e.held >= e.lookAt {
		c, s := e.largest()
		switch {
		case s != nil:
			s.abort(ReasonMemory, errMemory, http2.ErrCodeCancel)
		case c != nil:
			c.why = ReasonMemory
			e.cutOff(c, errMemory)
		default:
			e.lookAt = e.held + hold.Least
			return
		}
		e.Memory.Refuse(hold.Connection)
		e.report(1)
	}
}
