package engine

import (
	"errors"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
)

// What connections hold counts against the process's bound. Counting is local to an engine, because
// each chunk and each write changes it; the bound hears of it in steps.

// reportStep is how much an engine may hold that the bound does not know of.
const reportStep = 64 << 10

// report tells the bound what the engine holds.
func (e *Engine) report(step int64) {
	if d := e.held - e.reported; d >= step || d <= -step {
		e.Memory.Add(d)
		e.reported = e.held
	}
}

// weigh counts what the connection itself holds: output, which is there twice while it is written
// (as it is and encrypted), the frame or field block that comes in, input that waits for a turn, and
// heads of requests that wait.
func (c *Conn) weigh() {
	n := len(c.out) + 2*c.inflight + len(c.in) + len(c.block) + c.left + c.heads
	c.e.held += int64(n - c.weight)
	c.weight = n
}

// weigh counts what bodies of the stream hold for the client's connection. It is called when its
// queues have changed.
func (e *Engine) weigh(s *stream) {
	c, n := s.leg[up], (s.half[up].q.chunks+s.half[down].q.chunks)*chunkSize+s.half[up].tail+s.half[down].tail
	if n == s.held {
		return
	}
	if c == nil {
		s.held = n
		return
	}
	less := n < s.held
	c.queued += int(n - s.held)
	s.held = n
	if less {
		c.giveCredit() // it may have had to wait
	}
}

// keepTrailers has trailers wait until the body has gone; nil: none do any more. They are held as the body is.
func (e *Engine) keepTrailers(s *stream, d dir, list []hpack.HeaderField) {
	h, n := &s.half[d], int32(0)
	for i := range list {
		n += int32(list[i].Size()) // at most limits.maxHeader together
	}
	e.held += int64(n - h.tail)
	h.trailers, h.tail = list, n
	e.weigh(s)
}

// greedy reports whether a connection holds more than its share: its peer may send nothing more,
// and ask for nothing more.
func (c *Conn) greedy() bool {
	n := int64(c.queued + c.weight)
	return n > hold.Least && n > c.e.Memory.Share()
}

// largest is the connection that holds most, or the guest, which is as good as one: it has one over
// HTTP/1.1. Both nil: there is none that is worth closing.
func (e *Engine) largest() (most *Conn, guest *stream) {
	n := hold.Least
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

var errMemory = errors.New("closed because connections hold too much memory, and this one most")

// shed closes those that hold most while the bound is exceeded: at once, because a tick is long enough for hundreds of
// megabytes to come.
func (e *Engine) shed() {
	for e.Memory.Over() > 0 {
		c, s := e.largest()
		switch {
		case s != nil:
			e.abort(s, ReasonClientReset, errMemory, http2.ErrCodeCancel)
		case c != nil:
			e.cutOff(c, errMemory)
		default:
			return
		}
		e.Memory.Refuse(hold.Connection)
		e.report(1)
	}
}
