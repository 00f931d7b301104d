package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

const (
	never time.Duration = 1<<63 - 1 // later than any time
	// TickEvery is the resolution of all timers: deadlines are seconds, and 4 ticks a second are cheap.
	TickEvery     = 250 * time.Millisecond
	restEvery     = 2 * TickEvery // enough while no frames of streams come: timeouts and PINGs take seconds
	late          = 4 * TickEvery // how late a tick may be before it counts as a stall: peers' timeouts are seconds
	wheelSlots    = 256           // times TickEvery is 64 s, above the usual deadline of 60 s: most are checked once
	eventGap      = TickEvery     // the silence after which a watch's last event is complete: its bytes come together
	eventPatience = 3 * TickEvery // bounds the wait for the end of an event: a drain gives watches a second to end
)

// wheel holds the streams' timers in slots by the tick they expire at. Setting and clearing take constant time.
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

// Tick advances time: it runs expired timers and checks connections.
func (e *Engine) Tick(now time.Duration) {
	e.now = max(now, e.now)
	to := int64(e.now / TickEvery)
	for t := max(e.wheel.done+1, to-wheelSlots+1); t <= to; t++ {
		e.wheel.done = t
		for s := range e.wheel.slots[t%wheelSlots].drain {
			if s.expires <= e.now {
				s.expired()
			} else {
				e.arm(s, s.expires) // in a later round of the wheel
			}
		}
	}
	// Every request that waits for a dial chooses among all endpoints: another may have come back.
	for s := range e.awaitDial.drain { // streams that are appended now wait for the next time
		s.sending.tried = s.sending.tried[:0]
		s.resend()
	}
	e.checkGuests()
	e.report(1)
	e.lookAt = 0
	e.shed()
	for _, list := range e.pools {
		for _, p := range list {
			p.tick()
		}
	}
	if e.now-e.work.since > restAfter {
		e.work = activity{since: e.now, quiet: e.work.frames <= few}
	}
	if e.Rests() {
		e.dropSpares()
	}
	e.shortTimeout = false
	for _, c := range slices.Clone(e.conns) {
		if c.closing {
			e.checkClosing(c)
		} else {
			e.check(c)
		}
	}
}

// Pace returns the time until the next tick, unless something happens before. Zero means none.
func (e *Engine) Pace() time.Duration {
	switch {
	case !e.Rests() || e.awaitDial.n > 0 || e.shortTimeout || e.cutAt < never:
		return TickEvery
	case len(e.conns) > 0 || len(e.pools) > 0 || e.guests.n > 0:
		return restEvery
	}
	return 0
}

// Overslept must be called before each tick. A late tick means that this process did not run: its machine was
// stopped, or busy. What peers have sent meanwhile waits unread, so the gap does not count as their silence. In a
// suspended machine this clock stands still, too: for slept, in which a server may have closed what seems open here. So
// that counts as idle, as at net/http (tooOld in Transport.queueForIdleConn).
func (e *Engine) Overslept(now, slept time.Duration) {
	gap := now - e.ticked - TickEvery
	stalled := e.ticked > 0 && gap >= late
	if e.ticked = now; !stalled && slept == 0 {
		return
	}
	for _, c := range e.conns {
		c.idleSince -= slept
		for _, at := range []*time.Duration{&c.lastRead, &c.flushAt, &c.blockAt, &c.closingAt, &c.pingAt} {
			if stalled && *at > 0 { // else there was none
				*at = min(*at+gap, now)
			}
		}
	}
}

func (s *stream) expired() {
	if s.guest != nil {
		defer s.e.rescueStream(s) // its only connection is the backend's, which carries others' streams
	} else {
		defer s.e.rescue(cmp.Or(s.leg[up], s.leg[down]))
	}
	switch {
	case s.endBy > 0:
		s.endLongRunning(s.endWhy)
	case s.draining: // the response is complete, only the upload continues
		s.e.Count.reset(resetByEngine)
		s.reset(up, http2.ErrCodeNo)
		s.reset(down, http2.ErrCodeCancel)
		s.endIfDone()
	case s.half[down].head || s.reason != ReasonNone:
		s.abort(ReasonDeadline, errDeadline, http2.ErrCodeInternal)
	case s.wait.in != nil && s.wait.in != &s.e.awaitDial && len(s.e.pool(s).conns) > 0:
		s.answerNoRoom(s.e.pool(s)) // nothing was sent
	default:
		s.blame(ReasonDeadline, errDeadline)
		s.reset(down, http2.ErrCodeCancel)
		s.stopLocal()
		s.answerFailure()
	}
}

var errDeadline = errors.New("deadline exceeded")

// check checks one connection's timeouts and limits.
func (e *Engine) check(c *Conn) {
	defer e.rescue(c)
	if c.delayed {
		c.touch()
	}
	c.reach.rest(e.now)
	if c.side == up {
		c.giveCredit() // credit may have been withheld because others held much
	}
	e.checkKey(c)
	switch {
	case e.now >= c.cutAt:
		e.cutLongRunning(c, nil, ReasonRetired, false)
	case c.side == up && e.now >= e.cutFrom:
		e.cutLongRunning(c, nil, ReasonDrain, false)
	}
	var err error
	switch {
	case c.closing: // with the last stream that was ended
	case e.stalled(c):
		err = fmt.Errorf("peer accepted no output for %v", stallTime)
	case c.side == up:
		err = e.checkClient(c)
	default:
		err = e.checkBackend(c)
	}
	if err != nil {
		e.cutOff(c, err)
	}
}

// stalled reports whether the peer has accepted nothing of our output for too long. A slow reader always accepts some,
// although its socket may have no room for minutes. A client that reads nothing is kept until its kernel is silent,
// too, or others want the memory (shed): a stopped kubectl goes on with its watch later.
func (e *Engine) stalled(c *Conn) bool {
	if c.inflight == 0 {
		return false
	}
	c.out = e.buffers.Fit(c.out)
	_, silence := e.accepted(c, &c.flushAt)
	return e.now-c.flushAt > stallTime && (c.side == down || silence > goneTime)
}

// accepted sets at if the peer has acknowledged output since the last call, and reports whether none waits for its
// window: our own socket takes megabytes more. Silence is how long its kernel has answered nothing.
func (e *Engine) accepted(c *Conn, at *time.Duration) (sent bool, silence time.Duration) {
	n, sent, silence := e.Taken(c)
	if n != c.acked {
		c.acked, *at = n, e.now
	}
	return sent, silence
}

// checkKey has a connection replaced before its keys have encrypted too much.
func (e *Engine) checkKey(c *Conn) {
	if max(c.bytesIn, c.bytesOut) < keyBytes || c.cutAt < never {
		return
	}
	c.cutAt = e.now + keyGrace
	if c.side == up {
		e.drainConn(c)
		return
	}
	c.drained = true
	e.closeIfDone(c)
	c.pool.grow()
}

// checkClosing cuts a closed connection whose peer does not read, or close its side. One that reads would lose some.
func (e *Engine) checkClosing(c *Conn) {
	defer e.rescue(c)
	limit, waits := lingerTime, len(c.out)+c.inflight > 0
	if c.orderly {
		sent, _ := e.accepted(c, &c.closingAt)
		waits = waits || !sent // a peer that is gone only misses our GOAWAY, which was sent
	}
	if waits {
		limit = stallTime
	}
	if e.now-c.closingAt > limit && !c.cut {
		c.cut = true
		c.touch()
	}
}

func (e *Engine) checkClient(c *Conn) error {
	switch {
	case (c.preface > 0 || !c.started || c.blockID != 0) && e.now-c.blockAt > headTime:
		return fmt.Errorf("head not complete after %v", headTime)
	case c.goAway == goAwaySoon && e.now-c.goAwayAt > lingerTime:
		e.finalGoAway(c) // the client does not answer PING
	case len(c.streams) == 0 && e.now-c.idleSince > clientIdle:
		e.drainConn(c)
	}
	return nil
}

// Some servers take PINGs for an attack: Tomcat ends a connection after a dozen without requests. TCP notices a host
// that is gone (backend.expire). So a backend is only asked whether its process still runs: soon if a request waits for
// its answer, then after four times as long (0.9, 3.6, 14.4 s), else as rarely as client-go asks, and for as long.
const (
	// askAfter is the part of the limit after which a silent backend with a waiting request gets a PING: .9 s of 4.5 s.
	// A PING at half the limit left 2.25 s, and throttled backends lost connections that many requests share.
	askAfter    = 5
	askSeldom   = 30 * time.Second // client-go's ReadIdleTimeout
	quietAnswer = 15 * time.Second // its PingTimeout: a pause of seconds, as for a garbage collection, ends no watch
	nothingDue  = 8                // no request waits: there is nothing to ask soon for
	offence     = time.Second      // how soon after a PING a connection ends because of it
	tooOften    = 3                // so many such ends are no accident. GOAWAY with ENHANCE_YOUR_CALM is none, either
)

func (e *Engine) checkBackend(c *Conn) error {
	limit := cmp.Or(c.pool.ep.PingTimeout, defaultPing)
	c.resetLate()
	e.shortTimeout = e.shortTimeout || limit < defaultPing && len(c.streams) > 0
	limit -= limit / 10 // requests must have moved before all of the limit is over, and a tick may be late
	silent := e.now - c.lastRead
	if c.window <= 0 && c.chokedAt == 0 {
		c.chokedAt = e.now
	}
	switch {
	case len(c.streams) == 0 && e.now-c.idleSince > backendIdle:
		c.drained = true
		e.closeIfDone(c)
	case c.pingAt > 0:
		answer := max(limit-limit/askAfter-restEvery, limit/2)
		if c.asked == nothingDue {
			answer = max(answer, quietAnswer)
		}
		if silent >= limit && e.now-c.pingAt >= answer && !e.Unread(c) {
			return fmt.Errorf("backend silent for %v", silent)
		}
	case silent >= askSeldom, silent >= limit/askAfter<<(2*c.asked) && c.asked < nothingDue && c.awaited():
		if c.asked < nothingDue-1 {
			c.asked++
		}
		c.sendPing()
	}
	return nil
}

func (c *Conn) awaited() bool {
	for _, s := range c.streams {
		if !s.half[down].head {
			return true
		}
	}
	c.asked = nothingDue // until there is another request
	return false
}

// sendPing sends a PING to a backend. Any input then counts as an answer.
func (c *Conn) sendPing() {
	if c.pingAt > 0 || c.closing || c.pool.ep.offended.Load() >= tooOften {
		return
	}
	c.pingAt, c.askedAt = c.e.now, c.e.now
	c.writePing(0, []byte("fairlead"))
}

// cutLongRunning ends long-running streams, but handlers': of one upstream, or all if of is nil; in a drain in time.
func (e *Engine) cutLongRunning(c *Conn, of *Upstream, r Reason, watches bool) {
	for s := range c.ordered(func(s *stream) bool {
		return s.plan.LongRunning && s.local == nil && (of == nil || s.plan.Forward == of) &&
			(r != ReasonDrain || e.now >= s.endsAt()) && (!watches || !s.plan.Finite)
	}) {
		s.endLongRunning(r)
	}
}

// endLongRunning ends a watch like kube-apiserver's own timeout: what has come is delivered, and then the body ends. A
// client then begins the next one; it would log a reset as an error. Without a head, Plan.Fail answers: client-go then
// asks again, after a reset it lists all anew. For the rest of an ended watch a client has until endBy; a response that
// its backend has ended is complete, and delivered like any other. A response with a declared length cannot end early
// unnoticed, a finite one must not: both are reset.
func (s *stream) endLongRunning(r Reason) {
	h := &s.half[down]
	switch {
	case h.end && (s.endBy == 0 || s.e.now < s.endBy): // it has ended, and the rest is delivered
		return
	case !h.head:
		s.blame(r, nil) // first: the reset may wait for it
		s.reset(down, http2.ErrCodeCancel)
		s.failed(failure{reason: r, final: true})
		return
	case h.end || h.declared >= 0 || s.plan.Finite || s.leg[up] == nil && s.guest == nil:
		s.abort(r, nil, http2.ErrCodeCancel)
		return
	}
	if s.endBy == 0 {
		s.endBy, s.endWhy = s.e.now+eventPatience, r
	}
	if s.amidEvent() {
		s.e.arm(s, s.e.now+TickEvery)
		return
	}
	s.blame(r, nil)
	s.reset(down, http2.ErrCodeCancel)
	s.push(down, nil, true)
}

// AmidEvent reports whether a long-running response should continue a little, because its last bytes may be only part
// of an event: waited is how long it was put off, silence how old they are. A client that sees the end within an event
// logs an unexpected EOF. Events in JSON and lines of logs end with a newline, events in protobuf with silence.
func AmidEvent(waited, silence time.Duration, newline bool) bool {
	return waited < eventPatience && silence < eventGap && !newline
}

func (s *stream) amidEvent() bool {
	if c := s.leg[down]; c != nil && c.data.on && c.data.id == s.id[down] && c.data.left > 0 {
		return s.e.now < s.endBy
	}
	silence := s.e.now - s.event
	if s.half[down].q.size > 0 {
		silence = 0
	}
	return s.event > 0 && AmidEvent(s.e.now-(s.endBy-eventPatience), silence, s.newline)
}
