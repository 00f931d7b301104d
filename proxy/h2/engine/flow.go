package engine

import (
	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/internal/budget"
)

const (
	quantum = minMaxFrame // what a stream may send before the next stream's turn: a full default frame
	// maxDrained is how much of an upload is read after its response is complete, so that the client sees the response
	// (curl ignores it if a reset comes first). Then the stream is reset with NO_ERROR (§8.1).
	maxDrained = 32 << 20
)

// push accepts body bytes of direction d, sends what it can and queues the rest.
func (s *stream) push(d dir, p []byte, end bool) {
	h := &s.half[d]
	h.end = h.end || end
	if src := s.leg[d]; end && src != nil {
		if src.streamEnded(s.id[d], h); d == down && s.half[up].sentEnd {
			s.unlinkLeg(down) // the stream is closed for the backend, however slowly the client reads
		}
	}
	if h.discard {
		s.dropped(d, len(p))
		return
	}
	if dst := s.leg[1-d]; dst != nil && h.head && h.q.size == 0 && !h.q.keep && dst.ready.n == 0 {
		p = p[s.e.send(dst, s, d, p):]
	}
	if len(p) > 0 {
		h.q.push(s.e, p)
		s.e.weigh(s)
	}
	switch {
	case d == up && s.local != nil:
		s.local.Changed.Broadcast()
	case d == down && s.guest != nil:
		s.guest.waits = false
		s.e.wakeGuest(s.guest, down)
	}
	s.advance(d)
}

func (s *stream) dropped(d dir, n int) {
	h := &s.half[d]
	if !h.end && s.draining && h.got-h.sent > maxDrained {
		s.e.Count.reset(resetByEngine)
		s.reset(up, http2.ErrCodeNo)
		s.endIfDone()
		return
	}
	s.giveStreamCredit(d, n)
	if h.end {
		s.review()
	}
}

// send writes as much of p as the windows and the connection's output allow.
func (e *Engine) send(dst *Conn, s *stream, d dir, p []byte) int {
	h := &s.half[d]
	n := min(len(p), int(h.window), int(dst.window), dst.room())
	if n <= 0 {
		return 0
	}
	dst.writeData(s.id[1-d], p[:n], false)
	h.window -= int32(n)
	dst.window -= int32(n)
	h.sent += int64(n)
	dst.budget.Sent(n, h.window > 0 && dst.window > 0)
	s.giveStreamCredit(d, n)
	return n
}

// advance sends as much as possible of what waits in direction d.
func (s *stream) advance(d dir) {
	h, dst := &s.half[d], s.leg[1-d]
	switch {
	case dst == nil || !h.head || h.sentEnd || h.discard:
		if h.end {
			s.review()
		}
	case h.q.size == 0 && h.end:
		s.e.sendEnd(dst, s, d)
	case h.end && s.draining && min(h.window, dst.window) <= 0:
		s.review() // both sides are complete for the client, and the backend does not take the rest
	case h.q.size > 0 && h.window > 0:
		dst.ready.push(&h.ready)
		s.e.pump(dst)
	}
}

// pump lets the streams with output on c take turns until a limit is reached.
func (e *Engine) pump(c *Conn) {
	for c.window > 0 && c.room() > 0 && !c.closing {
		n := c.ready.first
		if n == nil {
			return
		}
		n.unlink()
		e.sendQueued(c, n.s, n.d)
	}
}

func (e *Engine) sendQueued(c *Conn, s *stream, d dir) {
	h, total := &s.half[d], 0
	for total < quantum {
		p := h.q.peek()
		n := e.send(c, s, d, p[:min(len(p), quantum-total)])
		if n == 0 {
			break
		}
		h.q.read(e, n)
		total += n
	}
	if d == up {
		if h.q.kept > replay {
			h.q.forget(e) // too much to send again
		}
		if s.guest != nil {
			e.wakeGuest(s.guest, up)
		}
	} else if s.local != nil {
		s.local.Changed.Broadcast()
	}
	e.weigh(s)
	switch {
	case h.q.size == 0 && h.end:
		e.sendEnd(c, s, d)
	case h.end && s.draining && min(h.window, c.window) <= 0:
		s.review()
	case h.q.size > 0 && h.window > 0:
		c.ready.push(&h.ready)
	}
}

// sendEnd ends direction d: trailers and END_STREAM are sent only after all bytes.
func (e *Engine) sendEnd(dst *Conn, s *stream, d dir) {
	h := &s.half[d]
	h.sentEnd = true
	if d == up {
		s.whole = e.now
	}
	if d == down && s.trailers != nil {
		dst.writeHeaders(s.id[up], true, s.trailers)
		s.keepTrailers(nil)
	} else {
		dst.writeData(s.id[1-d], nil, true)
	}
	s.review()
}

// review closes the sides of a stream that are complete, and ends the stream when both are.
func (s *stream) review() {
	u, d := &s.half[up], &s.half[down]
	if s.leg[down] != nil && d.end && u.sentEnd {
		s.unlinkLeg(down)
	}
	if d.sentEnd && s.leg[up] != nil {
		if u.end {
			s.leg[up].budget.Earn(budget.Completed)
			s.unlinkLeg(up)
			s.reset(down, http2.ErrCodeCancel) // its response is complete, and the rest of the request is of no use
		} else {
			s.drainUpload()
		}
	}
	s.endIfDone()
}

// drainUpload continues to read an upload whose response is complete. RST_STREAM(NO_ERROR) right after the response
// makes clients lose it (curl fails for a 3 MB POST), so only one that takes too long or sends too much gets it.
func (s *stream) drainUpload() {
	if !s.draining {
		s.draining = true
		s.countHead(int(s.head) + openStream)
		s.e.arm(s, s.e.now+drainTime)
	}
	if s.leg[down] == nil && s.local == nil && !s.half[up].discard {
		s.discardUpload()
	}
}

// discardUpload drops the queued part of an upload, and everything that follows.
func (s *stream) discardUpload() {
	h := &s.half[up]
	n := h.q.size
	h.discard = true
	h.q.clear(s.e)
	s.e.weigh(s)
	s.giveStreamCredit(up, n)
	if s.guest != nil {
		s.e.wakeGuest(s.guest, up)
	}
}

// giveCredit returns the connection's window in large steps (RFC 9113 §6.9 leaves this to us).
func (c *Conn) giveCredit() {
	step := c.e.lim.backendWindow / 2
	if c.side == up {
		step = clientWindow / 2 // also of a wider window
	}
	if c.credit < step || c.closing || c.side == up && c.greedy() {
		return
	}
	c.writeWindow(0, c.credit)
	c.recv += c.credit
	c.credit = 0
	c.reach.all.start(c.e.now, c.recv)
}

// giveStreamCredit returns a stream's window to the sender when n bytes were forwarded: not
// earlier, so that with a slow reader at most one window of bytes waits here.
func (s *stream) giveStreamCredit(d dir, n int) {
	h := &s.half[d]
	h.credit += int32(n)
	src := s.leg[d]
	if src == nil || h.end || src.closing {
		return
	}
	src.fit(s, h)
	if h.credit < streamWindow/2 { // also of a wider window
		return
	}
	src.writeWindow(s.id[d], h.credit)
	h.recv += h.credit
	h.credit = 0
	src.credited(s.id[d], h.recv)
}
