package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

const (
	// TickEvery is the resolution of all timers: deadlines are seconds, and 4 turns a second cost nothing.
	TickEvery = 250 * time.Millisecond
	// restEvery is enough while no frame of a stream comes: what ends then, or is asked, has seconds.
	restEvery = 2 * TickEvery
	// wheelSlots times tickEvery is 64 s, above the usual deadline of 60 s, so that most timers are looked at once.
	wheelSlots = 256
)

// wheel holds the streams' timers in slots by the tick they expire at. Setting and clearing cost the same for any number of them.
type wheel struct {
	slots [wheelSlots]list
	done  int64 // the last tick handled
}

// arm sets the stream's timer; 0 clears it.
func (e *Engine) arm(s *stream, at time.Duration) {
	s.timer.unlink()
	s.expires = at
	if at == 0 {
		return
	}
	t := max(int64((at+TickEvery-1)/TickEvery), e.wheel.done+1)
	e.wheel.slots[t%wheelSlots].push(&s.timer)
}

// Tick advances time: timers fire, connections are looked after.
func (e *Engine) Tick(now time.Duration) {
	e.now = max(now, e.now)
	to := int64(e.now / TickEvery)
	for t := max(e.wheel.done+1, to-wheelSlots+1); t <= to; t++ {
		e.wheel.done = t
		slot := &e.wheel.slots[t%wheelSlots]
		for n := slot.n; n > 0; n-- {
			s := slot.pop()
			if s == nil {
				break
			}
			if s.expires <= e.now {
				e.expired(s)
			} else {
				e.arm(s, s.expires) // a later round
			}
		}
	}
	e.placeIdling()
	e.checkGuests()
	e.report(1)
	e.shed()
	for _, p := range e.pools {
		p.look()
	}
	e.work.look(e.now)
	if e.Rests() {
		e.dropSpares()
	}
	e.brisk = false
	for _, c := range slices.Clone(e.conns) {
		if c.closing {
			e.checkClosing(c)
		} else {
			e.check(c)
		}
	}
}

// Pace is how long after a tick the next is to come, unless something happens. Zero: there is nothing to look after.
func (e *Engine) Pace() time.Duration {
	switch {
	case !e.Rests() || e.idling.n > 0 || e.brisk || e.going:
		return TickEvery
	case len(e.conns) > 0 || len(e.pools) > 0 || e.guests.n > 0:
		return restEvery
	}
	return 0
}

// late is how much a tick may be late without being taken for a stall: peers have seconds.
const late = 4 * TickEvery

// Overslept is told the time before each tick. One that comes late means that this process did not run: its machine was suspended, or had no processor to
// spare. What peers have sent meanwhile waits unread in their sockets, so that time is not counted as their silence.
func (e *Engine) Overslept(now time.Duration) {
	gap := now - e.ticked - TickEvery
	first := e.ticked == 0
	e.ticked = now
	if first || gap < late {
		return
	}
	for _, c := range e.conns {
		for _, at := range []*time.Duration{&c.lastRead, &c.flushAt, &c.blockAt, &c.closingAt} {
			*at = min(*at+gap, now)
		}
		if c.pingAt > 0 {
			c.pingAt = min(c.pingAt+gap, now)
		}
	}
}

// expired ends a stream whose time is over.
func (e *Engine) expired(s *stream) {
	if s.guest != nil {
		defer e.rescueStream(s) // its only connection is the backend's, which has others' streams
	} else {
		defer e.rescue(s.anyLeg())
	}
	switch {
	case s.endBy > 0:
		e.endLongRunning(s, s.endWhy)
	case s.draining:
		// The response is complete, only the upload goes on.
		e.Count.reset(resetByLane)
		e.reset(s, up, http2.ErrCodeNo)
		e.reset(s, down, http2.ErrCodeCancel)
		e.settle(s)
	case s.half[down].head || s.reason != ReasonNone:
		e.abort(s, ReasonDeadline, errDeadline, http2.ErrCodeInternal)
	case s.wait.in != nil && s.wait.in != &e.idling && len(e.pool(s.ep.carrier()).conns) > 0:
		e.crowdedOut(s, e.pool(s.ep.carrier())) // nothing was sent
	default:
		s.blame(ReasonDeadline, errDeadline)
		e.reset(s, down, http2.ErrCodeCancel)
		e.stopLocal(s)
		e.answerFailure(s)
	}
}

var errDeadline = errors.New("deadline exceeded")

// check looks after one connection.
func (e *Engine) check(c *Conn) {
	defer e.rescue(c)
	if c.held {
		c.touch()
	}
	c.reach.rest(e.now)
	if c.side == up {
		c.giveCredit() // it may have had to wait for others to hold less
	}
	e.checkKey(c)
	var err error
	switch {
	case e.stalled(c):
		err = fmt.Errorf("peer took nothing for %v", e.lim.stall)
	case c.side == up:
		err = e.checkClient(c)
	default:
		err = e.checkBackend(c)
	}
	if err != nil {
		e.cutOff(c, err)
	}
}

// stalled reports whether the peer has taken nothing for too long of what is being written. One that
// reads slowly takes some all the time, although the socket may have no room for minutes.
func (e *Engine) stalled(c *Conn) bool {
	if c.inflight == 0 {
		return false
	}
	if e.Taken != nil {
		if n := e.Taken(c); n != c.acked {
			c.acked, c.flushAt = n, e.now
		}
	}
	return e.now-c.flushAt > e.lim.stall
}

// checkKey has a connection replaced before its keys have encrypted too much.
func (e *Engine) checkKey(c *Conn) {
	if max(c.bytesIn, c.bytesOut) < e.lim.keyBytes || c.cutAt > 0 {
		return
	}
	c.cutAt = e.now + e.lim.keyGrace
	if c.side == up {
		e.drainConn(c)
		return
	}
	c.drained = true
	e.closeIfDone(c)
	c.pool.grow()
}

// checkClosing cuts a closed connection whose peer does not take our last words, or does not close its side.
func (e *Engine) checkClosing(c *Conn) {
	defer e.rescue(c)
	limit := e.lim.linger
	if len(c.out)+c.inflight > 0 {
		limit = e.lim.stall
	}
	if e.now-c.closingAt > limit && !c.cut {
		c.cut = true
		c.touch()
	}
}

func (e *Engine) checkClient(c *Conn) error {
	silent := e.now - c.lastRead
	if e.going && e.now >= e.cutAt {
		e.cutLongRunning(c, nil, ReasonDrain)
	} else if c.cutAt > 0 && e.now >= c.cutAt {
		e.cutLongRunning(c, nil, ReasonRetired)
	}
	switch {
	case c.closing: // with the last of those that were cut
	case (c.preface > 0 || !c.started || c.blockID != 0) && e.now-c.blockAt > e.lim.head:
		return fmt.Errorf("head not complete after %v", e.lim.head)
	case c.goAway == goAwaySoon && e.now-c.goAwayAt > e.lim.linger:
		e.finalGoAway(c) // the client does not answer PING
	case len(c.streams) == 0:
		if e.now-c.idleSince > e.lim.idle && c.goAway == goAwayNone {
			e.drainConn(c)
		}
	case c.pingAt > 0 && e.now-c.pingAt > e.lim.pong && !e.behind(c):
		return fmt.Errorf("client silent for %v", silent)
	case c.pingAt == 0 && silent > e.lim.ping:
		c.ask()
	}
	return nil
}

// askAfter is the part of the limit after which a silent backend is asked. By default that is 0.9 of
// 4.5 s, so that it has 3.5 s to answer; asking half way left it 2.25 s, and a backend that is
// throttled lost the connection that many share. An idle connection costs a PING a second.
const askAfter = 5

func (e *Engine) checkBackend(c *Conn) error {
	limit := c.pool.ep.PingTimeout
	if limit <= 0 {
		limit = defaultPing
	}
	e.brisk = e.brisk || limit < defaultPing && len(c.streams) > 0
	limit -= limit / 10 // a request that was sent must have gone elsewhere when the whole of it is over, and a tick may be late
	silent := e.now - c.lastRead
	if c.cutAt > 0 && e.now >= c.cutAt {
		e.cutLongRunning(c, nil, ReasonRetired)
	}
	switch {
	case c.closing: // with the last of those that were cut
	case len(c.streams) == 0 && e.now-c.idleSince > e.lim.backendIdle:
		c.drained = true
		e.closeIfDone(c)
	case silent >= limit && c.pingAt > 0 && !e.behind(c):
		return fmt.Errorf("backend silent for %v", silent)
	case silent >= limit/askAfter && c.pingAt == 0:
		c.ask()
	}
	return nil
}

// behind reports whether it is we who have not listened: what the peer has sent waits in its socket, because this process has more to do than it has
// processors for. It is asked when a peer would be given up, so its system call costs nothing otherwise.
func (e *Engine) behind(c *Conn) bool { return e.Unread != nil && e.Unread(c) }

// ask sends a PING. Whatever the peer sends then counts as an answer.
func (c *Conn) ask() {
	c.pingAt = c.e.now
	c.writePing(0, []byte("fairlead"))
}

// cutLongRunning ends what runs long: an upstream's, or everybody's if of is nil.
func (e *Engine) cutLongRunning(c *Conn, of *Upstream, r Reason) {
	for _, id := range c.ids(func(s *stream) bool { return s.plan.LongRunning && (of == nil || s.plan.Forward == of) }) {
		if s := c.streams[id]; s != nil {
			e.endLongRunning(s, r)
		}
	}
}

// endLongRunning ends a watch as kube-apiserver's own watch timeout does: what has come is delivered, and then the body ends. A client takes that for
// the end of the watch, and begins the next; a reset it would log as an error. A response of declared length cannot end early unnoticed, and one
// that has not begun has nothing to end: those are reset.
func (e *Engine) endLongRunning(s *stream, r Reason) {
	h := &s.half[down]
	if !h.head || h.end || h.declared >= 0 || s.local != nil || s.leg[up] == nil && s.guest == nil {
		e.abort(s, r, nil, http2.ErrCodeCancel)
		return
	}
	if s.endBy == 0 {
		s.endBy, s.endWhy = e.now+eventPatience, r
	}
	if e.amidEvent(s) {
		e.arm(s, e.now+TickEvery)
		return
	}
	s.blame(r, nil)
	e.reset(s, down, http2.ErrCodeCancel)
	e.push(s, down, nil, true)
}

const (
	// eventGap is the silence after which a watch's last event is whole: its bytes come in one burst.
	eventGap = TickEvery
	// eventPatience bounds how long the end of an event is waited for: a drain gives watches a second to end in.
	eventPatience = 3 * TickEvery
)

// AmidEvent reports whether to wait on with the end of a long-running response, after having waited for so long: its
// last bytes came so long ago, and may be only part of an event. A client that sees the end there logs an unexpected one.
// Events of JSON and lines of logs end with a newline, those of protobuf with silence.
func AmidEvent(waited, silence time.Duration, newline bool) bool {
	return waited < eventPatience && silence < eventGap && !newline
}

func (e *Engine) amidEvent(s *stream) bool {
	if c := s.leg[down]; c != nil && c.data.on && c.data.id == s.id[down] && c.data.left > 0 {
		return e.now < s.endBy
	}
	silence := e.now - s.event
	if s.half[down].q.size > 0 {
		silence = 0
	}
	return s.event > 0 && AmidEvent(e.now-(s.endBy-eventPatience), silence, s.newline)
}
