package engine

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// Guest is a stream with a caller in the driver in place of a client's connection, as Local is in the backend's place.
type Guest struct {
	e *Engine
	// ready signals that another look is worthwhile: at the response [down], or for room in the request body [up].
	ready [2]chan struct{}
	Over  atomic.Bool // Plan.Done has returned. It needs no mutex; Came signals the change

	s        *stream // nil means that it has ended
	interims []wire.ResponseHead
	head     wire.ResponseHead   // the final head; Status is 0 until it has come
	waits    bool                // the head waits for the first bytes of its body, see finalHead
	rest     []byte              // unread bytes of the body when the stream ended too early
	Trailers []hpack.HeaderField // of a response that was read to its end
	err      error               // why the stream has ended; nil if it is complete
	listed   node                // on the engine's list of guests
}

// Failure is the error of a guest's request, or of reading its response's body.
type Failure struct {
	Outcome
	Answer http.Handler // the answer to the request from Plan.Fail or Plan.Accept. Nil means none
}

// Error returns the reason, with its details.
func (f *Failure) Error() string {
	if f.Err == nil {
		return string(f.Reason)
	}
	return string(f.Reason) + ": " + f.Err.Error()
}

// Unwrap returns the details of Reason.
func (f *Failure) Unwrap() error { return f.Err }

// Invite begins a guest's stream.
func (e *Engine) Invite(g *Guest, h *wire.Head, p Plan) {
	s := e.freshStream()
	s.guest, g.s, g.e = g, s, e
	g.ready[down] = make(chan struct{}, 1)
	if !h.EndStream {
		g.ready[up] = make(chan struct{}, 1)
	}
	g.listed = node{s: s}
	e.guests.push(&g.listed)
	s.half[up].end, s.half[up].declared = h.EndStream, h.ContentLength
	s.headOnly = h.Method == http.MethodHead
	s.apply(h, p)
}

// Recovered handles a panic during a caller's turn.
func (g *Guest) Recovered(v any) {
	g.e.recovered(nil, v)
	if g.s != nil {
		g.s.dropStream()
	}
}

// Came signals that Take or Read may return more than before. It needs no mutex.
func (g *Guest) Came() <-chan struct{} { return g.ready[down] }

// Room signals that Pass may accept more, or that the stream has ended.
func (g *Guest) Room() <-chan struct{} { return g.ready[up] }

// wakeGuest wakes the caller when the turn is over, so that it finds the mutex free.
func (e *Engine) wakeGuest(g *Guest, d dir) { e.calls = append(e.calls, call{guest: g, dir: d}) }

func (g *Guest) wake(d dir) {
	select {
	case g.ready[d] <- struct{}{}:
	default: // already signalled, or there is no body
	}
}

// dismiss ends a stream that was not forwarded; h is the answer for its caller, and may be nil.
func (s *stream) dismiss(h http.Handler) {
	s.endGuest(&Failure{Outcome: s.outcome(), Answer: h})
	s.reset(down, http2.ErrCodeCancel)
	s.endIfDone()
}

// stopGuest detaches an aborted stream from its caller, who still gets up to hold.Least of the
// received body: that part is no longer counted. One that has left or holds too much gets nothing.
func (s *stream) stopGuest() {
	g := s.guest
	if g == nil {
		return
	}
	reads := s.reason != ReasonClientReset && s.reason != ReasonMemory
	for q := &s.half[down].q; reads && q.size > 0 && len(g.rest) < hold.Least; {
		p := q.peek()
		g.rest = append(g.rest, p...)
		q.read(s.e, len(p))
	}
	s.endGuest(&Failure{Outcome: s.outcome()})
}

// endGuest detaches the stream from its caller, who is notified when the stream has ended.
func (s *stream) endGuest(err error) {
	g := s.guest
	s.guest, g.s, g.err, g.waits = nil, nil, err, false
	g.listed.unlink()
	s.formerGuest = g
}

// notifyGuest tells the guest that its stream has ended, after Plan.Done.
func (s *stream) notifyGuest() {
	if g := s.formerGuest; g != nil {
		s.e.calls = append(s.e.calls, call{guest: g, over: true})
	}
}

func (s *stream) completeGuest() {
	s.guest.Trailers = s.trailers
	s.half[down].sentEnd = true
	s.endGuest(nil)
	s.reset(down, http2.ErrCodeCancel) // the rest of the request is of no use
	s.endIfDone()
}

// Abort ends the stream if it has not ended yet.
func (g *Guest) Abort(err error) {
	if s := g.s; s != nil {
		s.abort(ReasonClientReset, err, http2.ErrCodeCancel)
	}
}

// checkGuests does for guests what check does for connections.
func (e *Engine) checkGuests() {
	defer e.rescue(nil)
	for s := range e.guests.drain {
		g := s.guest
		e.guests.push(&g.listed) // it stays, unless it ends here
		if g.waits {
			g.waits = false
			e.wakeGuest(g, down)
		}
		if s.plan.LongRunning && e.now >= s.endsAt() {
			s.endLongRunning(ReasonDrain)
		}
	}
}

// Pass accepts a part of the request's body, with reading's error. It reports whether to go on, and to wait for room.
func (g *Guest) Pass(p []byte, err error) (more, wait bool) {
	s := g.s
	if s == nil || s.half[up].discard {
		return false, false
	}
	u := &s.half[up]
	if u.q.size >= guestBuffer {
		return true, true
	}
	u.got += int64(len(p))
	end := err == io.EOF //nolint:errorlint // readers do not wrap it
	switch {
	case err != nil && !end:
		err = fmt.Errorf("reading the request's body: %w", err)
	case u.declared >= 0 && (u.got > u.declared || end && u.got != u.declared):
		err = fmt.Errorf("%d bytes of body came where %d were announced", u.got, u.declared)
	default:
		s.push(up, p, end)
		return !end, false
	}
	s.abort(ReasonClientReset, err, http2.ErrCodeCancel)
	return false, false
}

// Take returns what has come of the response; the head's Status is 0 until the final one. A non-nil body is the whole.
func (g *Guest) Take() (interims []wire.ResponseHead, head wire.ResponseHead, body []byte, err error) {
	interims, g.interims = g.interims, nil
	s := g.s
	if s == nil && (g.head.Status == 0 || len(g.rest) == 0) {
		return interims, wire.ResponseHead{}, nil, g.err
	}
	if head = g.head; s == nil || head.Status == 0 {
		return interims, head, nil, nil
	}
	if d := &s.half[down]; d.end && d.q.size <= guestBuffer {
		body = make([]byte, d.q.size)
		s.readBody(down, body)
		s.completeGuest()
	}
	return interims, head, body, nil
}

// Read reads the body's available bytes, and reports whether there are more. At the end it returns io.EOF.
func (g *Guest) Read(p []byte) (n int, more bool, err error) {
	if g.s == nil {
		if len(g.rest) == 0 {
			return 0, false, g.err
		}
		n = copy(p, g.rest)
		g.rest = g.rest[n:]
		return n, len(g.rest) > 0, nil
	}
	n = g.s.readBody(down, p)
	d := &g.s.half[down]
	if more = d.q.size > 0; more || !d.end {
		return n, more, nil
	}
	g.s.completeGuest()
	return n, false, io.EOF
}

// AtHand reports whether Read would return something at once.
func (g *Guest) AtHand() bool { return g.s == nil || g.s.half[down].q.size > 0 || g.s.half[down].end }

// Leave drops the unread part of the response.
func (g *Guest) Leave(err error) {
	g.Abort(err)
	g.rest = nil
}

// readBody reads available bytes of a body that this process takes, and returns credit for them.
func (s *stream) readBody(d dir, p []byte) (n int) {
	h := &s.half[d]
	for n < len(p) && h.q.size > 0 {
		k := copy(p[n:], h.q.peek())
		h.q.read(s.e, k)
		n += k
	}
	h.sent += int64(n)
	s.e.weigh(s)
	s.giveStreamCredit(d, n)
	return n
}
