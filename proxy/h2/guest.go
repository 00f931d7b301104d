package h2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// guest is a stream that no client's connection carries: in the client's place is a caller of
// Server.RoundTrip. It mirrors local, which is in the backend's place. It ends when the response
// was read to its end, when its body is closed, or when the request's context ends.
type guest struct {
	sh      *shard
	ctx     context.Context
	request *http.Request
	// announced are the request's trailers that are forwarded, as keys of its Trailer.
	announced []string
	// ready has an element when it is worth looking again: for what has come of the response [down],
	// or for room in the queue of the request's body [up].
	ready [2]chan struct{}
	over  atomic.Bool // Plan.Done has returned

	// The shard's mutex guards what follows.
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

// Failure is why RoundTrip, or reading the body of its response, has failed.
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

// RoundTrip forwards a request as if an HTTP/2 client had sent it and Config.Decide had returned
// the plan, whose Forward must be set. h is r's head, if the caller has made it already: of r, only
// the body, its length, the trailers and the context count then. What the plan would have a client
// answered with comes as a *Failure; if r's context ends, that is what errors.Is finds.
//
// Plan.Done is called in any case, and has returned when RoundTrip or Read returns an error.
// As with http.RoundTripper, r's body is closed, perhaps later, and the response's must be read to
// its end or closed. Interim heads go to the httptrace.ClientTrace of r's context.
func (s *Server) RoundTrip(r *http.Request, h *Head, p Plan) (*http.Response, error) {
	sh := s.shards[int(s.next.Add(1))%len(s.shards)]
	g := &guest{sh: sh, ctx: r.Context(), request: r}
	g.ready[down] = make(chan struct{}, 1)
	hasBody := r.Body != nil && r.Body != http.NoBody
	if hasBody {
		g.ready[up] = make(chan struct{}, 1)
	}
	head, err := g.requestHead(h, hasBody, p.Remove)
	if err == nil && !sh.invite(g, &head, p) {
		err = errServerEnded
	}
	if err != nil {
		if hasBody {
			_ = r.Body.Close() // nobody has read it
		}
		if p.Done != nil {
			p.Done(Outcome{Reason: ReasonAbort, Err: err})
		}
		return nil, err
	}
	if hasBody {
		go g.upload() // ends with the body, or with the read that is under way when the stream ends
	}
	return g.answer()
}

// invite begins the stream. False: the server has ended.
func (sh *shard) invite(g *guest, h *Head, p Plan) (begun bool) {
	sh.lock()
	defer g.leave()
	if sh.ended {
		return false
	}
	e := sh.e
	s := e.freshStream()
	s.guest, g.s = g, s
	g.listed = node{s: s}
	e.guests.push(&g.listed)
	s.half[up].end, s.half[up].declared = h.EndStream, h.ContentLength
	if h.Method == http.MethodHead {
		s.method = methodHead
	}
	begun = true // if what follows panics, too
	e.apply(s, h, p)
	return begun
}

// requestHead makes the request's head. What the caller has made is as valid as a client's; of other
// requests what no HTTP/2 client's may have is left out, or refused.
func (g *guest) requestHead(known *Head, body bool, remove func(string) bool) (h Head, err error) {
	r := g.request
	if known != nil {
		h = *known
	} else {
		h = Head{Method: cmp.Or(r.Method, http.MethodGet), Authority: r.Host}
		h.SetTarget(r.URL.RequestURI())
		if !h.Valid() {
			return h, errBadRequest
		}
		h.Fields = requestFields(r, body)
	}
	h.ContentLength, h.EndStream = -1, !body
	if body && r.ContentLength > 0 {
		h.ContentLength = r.ContentLength
	}
	for key := range r.Trailer {
		if name := strings.ToLower(key); wire.PassesTrailer(name) && (remove == nil || !remove(name)) {
			g.announced = append(g.announced, key)
			h.Fields = append(h.Fields, hpack.HeaderField{Name: "trailer", Value: name})
		}
	}
	return h, nil
}

func requestFields(r *http.Request, body bool) []hpack.HeaderField {
	fields := make([]hpack.HeaderField, 0, len(r.Header)+2)
	for key, values := range r.Header {
		switch key {
		case "Content-Length", "Host", "Te", "Trailer":
		default:
			fields = wire.AppendField(fields, key, values)
		}
	}
	if body && r.ContentLength > 0 {
		fields = append(fields, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(r.ContentLength, 10)})
	}
	return fields
}

var errBadRequest = errors.New("request cannot be sent over HTTP/2")

// leave is settle for a caller's turn. It is deferred: whatever the engine does in it, the mutex is free afterwards.
func (g *guest) leave() {
	if v := recover(); v != nil {
		g.sh.e.recovered(nil, v)
		if g.s != nil {
			g.sh.e.bury(g.s)
		}
	}
	g.sh.settle()
}

// wake has the caller look at direction d.
func (g *guest) wake(d dir) {
	select {
	case g.ready[d] <- struct{}{}:
	default: // it has been told, or there is no body
	}
}

// wakeGuest does that when the turn is over, so that it finds the mutex free.
func (e *engine) wakeGuest(g *guest, d dir) {
	e.calls = append(e.calls, call{guest: g, dir: d})
}

// interimGuest passes a 1xx head on.
func (e *engine) interimGuest(g *guest, r wire.ResponseHead) {
	r.Fields = slices.Clone(r.Fields)
	g.interims = append(g.interims, r)
	e.wakeGuest(g, down)
}

// headGuest passes the final head on. One that says how long its body is waits for the first bytes, as with finalHead.
func (e *engine) headGuest(s *stream, r wire.ResponseHead, end bool) {
	g := s.guest
	g.head = r
	g.head.Fields = slices.Clone(r.Fields)
	if g.waits = !end && r.ContentLength > 0 && s.half[up].end && !s.noBody && !s.plan.LongRunning; !g.waits {
		e.wakeGuest(g, down)
	}
}

// dismiss ends a stream that was not forwarded. The caller may answer with h.
func (e *engine) dismiss(s *stream, h http.Handler) {
	g := s.guest
	e.endGuest(s, &Failure{Outcome: e.outcome(s), Answer: h})
	g.head = wire.ResponseHead{}
	e.reset(s, down, http2.ErrCodeCancel)
	e.settle(s)
}

// stopGuest takes an aborted stream away from its caller, who still gets a little of what has come of the body: no more than
// everybody may hold, because it is not counted any more. Who has left or holds too much gets nothing.
func (e *engine) stopGuest(s *stream) {
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
func (e *engine) endGuest(s *stream, err error) {
	g := s.guest
	s.guest, g.s, g.err, g.waits = nil, nil, err, false
	g.listed.unlink()
	s.left = g
}

// farewell tells a guest that its stream has ended, after Plan.Done was.
func (e *engine) farewell(s *stream) {
	if g := s.left; g != nil {
		e.calls = append(e.calls, call{guest: g, over: true})
	}
}

// end does that.
func (g *guest) end() {
	g.over.Store(true)
	g.wake(down)
	g.wake(up)
}

// ended waits for Plan.Done, which another's turn may still have to call.
func (g *guest) ended() {
	for !g.over.Load() {
		<-g.ready[down]
	}
}

// completeGuest ends the stream of a response that was read to its end.
func (e *engine) completeGuest(s *stream) {
	s.guest.trailers = s.half[down].trailers
	s.half[down].sentEnd = true
	e.endGuest(s, nil)
	e.reset(s, down, http2.ErrCodeCancel) // nobody needs what the backend might still read
	e.settle(s)
}

// abandon ends the stream if it has not ended yet.
func (g *guest) abandon(err error) {
	g.sh.lock()
	defer g.leave()
	if s := g.s; s != nil {
		g.sh.e.abort(s, ReasonClientReset, err, http2.ErrCodeCancel)
	}
}

// checkGuests looks after guests as check does after connections.
func (e *engine) checkGuests() {
	for n := e.guests.first; n != nil; n = n.next {
		if g := n.s.guest; g.waits {
			g.waits = false
			e.wakeGuest(g, down)
		}
	}
	if e.going && e.now >= e.cutAt {
		e.endGuests(ReasonDrain)
	}
}

// endGuests ends what runs long.
func (e *engine) endGuests(r Reason) {
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
func (e *engine) cutGuests(err error) {
	for n := e.guests.n; n > 0 && e.guests.first != nil; n-- {
		e.abort(e.guests.first.s, ReasonDrain, err, http2.ErrCodeCancel)
	}
}

// guestChunk is how much of a request's body is read at a time, and held for one that does not come.
const guestChunk = 16 << 10

// upload sends the request's body.
func (g *guest) upload() {
	body := g.request.Body
	defer body.Close()
	buf := g.sh.pool.getPart()
	defer g.sh.pool.putPart(buf)
	for more := true; more; {
		n, err := body.Read(buf[:])
		for wait := true; wait; {
			if more, wait = g.pass(buf[:n], err); wait {
				<-g.ready[up] // which the end of the stream makes ready, too
			}
		}
	}
}

// pass takes a part of the request's body in. wait: there is no room yet.
func (g *guest) pass(p []byte, err error) (more, wait bool) {
	g.sh.lock()
	defer g.leave()
	s, e := g.s, g.sh.e
	if s == nil || s.half[up].discard {
		return false, false
	}
	u := &s.half[up]
	if u.q.size >= localBuffer {
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
		if end {
			e.keepTrailers(s, up, g.requestTrailers())
		}
		e.push(s, up, p, end)
		return !end, false
	}
	e.abort(s, ReasonClientReset, err, http2.ErrCodeCancel)
	return false, false
}

// requestTrailers are those of the request that are forwarded. Its body has been read to its end.
func (g *guest) requestTrailers() (trailers []hpack.HeaderField) {
	for _, key := range g.announced {
		trailers = wire.AppendField(trailers, key, g.request.Trailer[key])
	}
	return trailers
}
