package engine

import (
	"net/http"
	"slices"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// Guest is a stream that no client's connection carries: in the client's place is a caller of the
// driver's. It mirrors Local, which is in the backend's place.
type Guest struct {
	e *Engine
	// ready has an element when it is worth looking again: for what has come of the response [down],
	// or for room in the queue of the request's body [up].
	ready [2]chan struct{}
	over  atomic.Bool // Plan.Done has returned

	s        *stream // nil: it has ended
	interims []wire.ResponseHead
	hinted   int               // the size of all that have come
	head     wire.ResponseHead // final; its Status is 0 until it has come
	waits    bool              // the head waits for the first bytes of its body, see finalHead
	rest     []byte            // what had come of the body when the stream ended too early
	trailers []hpack.HeaderField
	err      error // why the stream has ended; nil: it is complete
	listed   node  // on the engine's list of guests
}

// Failure is why a guest's request, or reading the body of its response, has failed.
type Failure struct {
	Outcome
	// Answer is what Plan.Fail or Plan.Accept wants the request answered with. Nil: nothing.
	Answer http.Handler
}

// Error names the reason.
func (f *Failure) Error() string {
	if f.Err == nil {
		return string(f.Reason)
	}
	return string(f.Reason) + ": " + f.Err.Error()
}

// Unwrap returns what Reason names in more detail.
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
	if h.Method == http.MethodHead {
		s.method = methodHead
	}
	e.apply(s, h, p)
}

// Recovered goes on after a panic in a caller's turn.
func (g *Guest) Recovered(v any) {
	g.e.recovered(nil, v)
	if g.s != nil {
		g.e.bury(g.s)
	}
}

// Came has an element when Take or Read may find more than before. It is for who holds no mutex.
func (g *Guest) Came() <-chan struct{} { return g.ready[down] }

// Room has one when Pass may, and when the stream has ended.
func (g *Guest) Room() <-chan struct{} { return g.ready[up] }

// wakeGuest has the caller look at a direction when the turn is over, so that it finds the mutex free.
func (e *Engine) wakeGuest(g *Guest, d dir) {
	e.calls = append(e.calls, call{guest: g, dir: d})
}

// wake is what then happens.
func (g *Guest) wake(d dir) {
	select {
	case g.ready[d] <- struct{}{}:
	default: // it has been told, or there is no body
	}
}

// interimGuest passes a 1xx head on.
func (e *Engine) interimGuest(g *Guest, r wire.ResponseHead) {
	r.Fields = slices.Clone(r.Fields)
	g.interims = append(g.interims, r)
	e.wakeGuest(g, down)
}

// headGuest passes the final head on. One that says how long its body is waits for the first bytes, as with finalHead.
func (e *Engine) headGuest(s *stream, r wire.ResponseHead, end bool) {
	g := s.guest
	g.head = r
	g.head.Fields = slices.Clone(r.Fields)
	if g.waits = !end && r.ContentLength > 0 && s.half[up].end && !s.noBody && !s.plan.LongRunning; !g.waits {
		e.wakeGuest(g, down)
	}
}

// dismiss ends a stream that was not forwarded. The caller may answer with h.
func (e *Engine) dismiss(s *stream, h http.Handler) {
	g := s.guest
	e.endGuest(s, &Failure{Outcome: e.outcome(s), Answer: h})
	g.head = wire.ResponseHead{}
	e.reset(s, down, http2.ErrCodeCancel)
	e.settle(s)
}

// stopGuest takes an aborted stream away from its caller, who still gets a little of what has come of the body: no more than
// everybody may hold, because it is not counted any more. Who has left or holds too much gets nothing.
func (e *Engine) stopGuest(s *stream) {
	g := s.guest
	if g == nil {
		return
	}
	for q := &s.half[down].q; q.size > 0 && len(g.rest) < hold.Least && s.reason != ReasonClientReset; {
		p := q.peek()
		g.rest = append(g.rest, p...)
		q.read(e, len(p))
	}
	e.endGuest(s, &Failure{Outcome: e.outcome(s)})
}

// endGuest takes the stream away from its caller, who hears of it when it is settled.
func (e *Engine) endGuest(s *stream, err error) {
	g := s.guest
	s.guest, g.s, g.err, g.waits = nil, nil, err, false
	g.listed.unlink()
	s.left = g
}

// farewell tells a guest that its stream has ended, after Plan.Done was.
func (e *Engine) farewell(s *stream) {
	if g := s.left; g != nil {
		e.calls = append(e.calls, call{guest: g, over: true})
	}
}

// end does that.
func (g *Guest) end() {
	g.over.Store(true)
	g.wake(down)
	g.wake(up)
}

// Over reports whether Plan.Done has returned. It is for who holds no mutex; Came has an element when it has.
func (g *Guest) Over() bool { return g.over.Load() }

// completeGuest ends the stream of a response that was read to its end.
func (e *Engine) completeGuest(s *stream) {
	s.guest.trailers = s.half[down].trailers
	s.half[down].sentEnd = true
	e.endGuest(s, nil)
	e.reset(s, down, http2.ErrCodeCancel) // nobody needs what the backend might still read
	e.settle(s)
}

// Abort ends the stream if it has not ended yet.
func (g *Guest) Abort(err error) {
	if s := g.s; s != nil {
		g.e.abort(s, ReasonClientReset, err, http2.ErrCodeCancel)
	}
}

// checkGuests looks after guests as check does after connections.
func (e *Engine) checkGuests() {
	for n := e.guests.first; n != nil; n = n.next {
		if g := n.s.guest; g.waits {
			g.waits = false
			e.wakeGuest(g, down)
		}
	}
	if e.going && e.now >= e.cutAt {
		e.EndGuests(ReasonDrain)
	}
}

// EndGuests ends what runs long.
func (e *Engine) EndGuests(r Reason) {
	defer e.rescue(nil)
	var long []*stream
	for n := e.guests.first; n != nil; n = n.next {
		if n.s.plan.LongRunning {
			long = append(long, n.s)
		}
	}
	for _, s := range long {
		if s.guest != nil && s.plan.LongRunning { // else it has ended with another
			e.endLongRunning(s, r)
		}
	}
}

// cutGuests ends all guests' streams at once.
func (e *Engine) cutGuests(err error) {
	for n := e.guests.n; n > 0 && e.guests.first != nil; n-- {
		e.abort(e.guests.first.s, ReasonDrain, err, http2.ErrCodeCancel)
	}
}
