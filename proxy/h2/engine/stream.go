package engine

import (
	"net/http"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/budget"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// dir is a direction of a stream, and the index of its source leg: bytes arrive on leg[d] and leave on leg[1-d].
type dir uint8

const (
	up   dir = 0 // from the client (leg 0) to the backend or handler (leg 1)
	down dir = 1 // back to the client
)

// half is one direction of a stream.
type half struct {
	q        queue
	window   int32 // bytes that the receiving peer still allows on the stream; may be negative (§6.9.2)
	recv     int32 // bytes that the sending peer may still send on the stream
	credit   int32 // bytes forwarded, not yet returned to the sender's window
	full     int32 // the size of recv's window
	end      bool  // END_STREAM was received
	sentEnd  bool  // END_STREAM was sent
	discard  bool  // bytes are dropped: they are no longer needed
	head     bool  // the final head of this direction was sent
	declared int64 // content-length; -1 means none
	got      int64 // body bytes received
	sent     int64 // body bytes sent
	ready    node  // on the receiving connection's ready list
}

// stream is one request: a stream on a client's connection and, while forwarded, on a backend's.
type stream struct {
	e    *Engine
	leg  [2]*Conn // client's and backend's connection; nil means that the stream has not begun there or has ended
	id   [2]uint32
	half [2]half

	started time.Duration // on the engine's clock
	waited  time.Duration // when the final response head came
	sent    time.Duration // when the head was last sent to a backend
	whole   time.Duration // when the end of its body was last sent to a backend
	answer  time.Duration // time from the end of the request to the backend's final response head
	timer   node          // in a slot of the wheel
	expires time.Duration // when the timer fires; draining and endBy say what for
	event   time.Duration // when body bytes last came from the backend
	endBy   time.Duration // when a long-running stream ends at the latest, even within an event; 0 means never
	endWhy  Reason
	newline bool // the last of those bytes ended a line
	wait    node // on a pool's list of streams without a connection, or the engine's for which none could be dialled

	trailers    []hpack.HeaderField // of the response
	tail        int32               // size of trailers, and of what is lent, in bytes
	lent        int32               // size of the heads for a guest's caller in bytes
	hinted      int32               // size of 1xx heads in bytes
	plan        kept
	ep          *Endpoint // the last one picked
	sending     *sending  // nil means that nothing is sent again
	ticket      *ticket
	local       *Local
	guest       *Guest
	formerGuest *Guest // the former guest, to be notified that the stream has ended
	freed       freed
	tries       int8
	interims    uint8 // 1xx heads forwarded
	headOnly    bool  // the method is HEAD
	fresh       bool  // sent over a connection that had answered nothing yet
	picked      bool  // the endpoint counts this request: Release must be called
	parked      bool  // Decide will call resume
	draining    bool  // the response is complete, the upload is read and dropped until expires
	noBody      bool  // the response must not have a body: HEAD, 204, 304
	status      int16
	head        int32 // what is counted in the client's conn.heads
	held        int32 // bytes of its queues counted for the client's connection
	reason      Reason
	err         error
}

// kept is the part of a Plan that is needed to the end: a watch keeps it for hours.
type kept struct {
	Forward                *Upstream
	RemoveResponse         func(string) bool
	Fail                   func(Outcome) http.Handler
	Done                   func(Outcome)
	LongRunning, Finite    bool
	Resumes, Apart, GoAway bool
	Owner                  string
}

// sending is what a forwarded request needs until the response's head: until then it may be sent again.
type sending struct {
	fields    []hpack.HeaderField // the head as forwarded, pseudo-fields first
	tried     []*Endpoint
	until     time.Duration // when waiting for room on a connection ends; 0 means it has not waited
	since     time.Duration // when it began to wait for the present endpoint's
	slot      int           // the number of streams that the backend had when the request was sent, including it
	dialUntil time.Duration // when waiting for an endpoint that can be dialled ends; 0 means no dial has failed yet
	wait      time.Duration // this and the following are the Plan's
	accept    func(int, bool) http.Handler
	budget    func() bool
	client    any
	stays     bool
	tired     bool // it has looked elsewhere, see tires
	retries   int8
	again     bool
	named     bool // :authority is the endpoint's Host
	size      int  // of fields, as for SETTINGS_MAX_HEADER_LIST_SIZE, without :authority
	long      bool // a server may not like the head, see measure
	alone     bool // sent over connections of its owner alone
	lost      bool // a connection was lost with it
	freed     freed
}

// newSending stores the retry policy of p. It reuses an earlier request's memory for the fields.
func (e *Engine) newSending(p *Plan) *sending {
	const maxRetries = 2 // bounds Plan.Retries: with the first try it is three
	to := reuse(&e.sendings)
	to.freed = false
	to.wait, to.accept, to.budget, to.client = p.Wait, p.Accept, p.Budget, p.Client
	to.retries, to.again, to.stays = int8(min(p.Retries, maxRetries)), p.Again, p.Stays
	return to
}

// freeSending is called when the request cannot be sent again any more.
func (s *stream) freeSending() {
	s.countHead(0)
	to := s.sending
	if to == nil {
		return
	}
	s.sending = nil
	to.freed.free()
	if len(s.e.sendings) < maxFreeStreams && cap(to.fields) <= manyFields {
		clear(to.fields)
		clear(to.tried)
		*to = sending{fields: to.fields[:0], tried: to.tried[:0], freed: true}
		s.e.sendings = append(s.e.sendings, to)
	}
}

// countHead counts n bytes for the request's head; none once the backend has answered.
func (s *stream) countHead(n int) {
	if c := s.leg[up]; c != nil {
		c.heads += n - int(s.head)
		s.head = int32(n)
	}
}

// ticket connects a parked stream with its plan. It outlives the stream, whose memory is reused.
type ticket struct {
	s      *stream    // nil means that the stream has ended or was resumed
	head   *wire.Head // of a parked stream
	resume func(Plan)
	end    Outcome // of a parked stream
}

func (e *Engine) newStream(c *Conn, id uint32) *stream {
	s := e.freshStream()
	s.leg[up], s.id[up] = c, id
	s.half[down].window = c.peerWindow
	s.half[up].recv, s.half[up].full = streamWindow, streamWindow
	c.streams[id] = s
	return s
}

func (e *Engine) freshStream() *stream {
	s := reuse(&e.streams)
	s.e, s.freed, s.started = e, false, e.now
	for d := range s.half {
		s.half[d].ready = node{s: s, d: dir(d)}
		s.half[d].declared = -1
	}
	s.timer, s.wait = node{s: s}, node{s: s}
	e.Count.Streams.Add(1)
	return s
}

const maxFreeStreams = 1024 // bounds a shard's free lists: about 0.5 MiB, and manyFields of 40 bytes each for requests

// endIfDone ends the stream if it has no leg, handler, guest or wait left. It must be called after
// one of them has gone; s must not be used afterwards.
func (s *stream) endIfDone() {
	if s.leg[0] != nil || s.leg[1] != nil || s.local != nil || s.guest != nil || s.wait.in != nil {
		return
	}
	s.freed.free()
	s.e.Count.Streams.Add(-1)
	s.release()
	s.e.calls = append(s.e.calls, call{done: s.plan.Done, outcome: s.outcome()})
	s.notifyGuest()
	if s.parked { // a plan that still comes only gets its Done called
		*s.ticket = ticket{resume: s.ticket.resume, end: s.outcome()}
		s.ticket = nil
	}
	s.e.arm(s, 0)
	s.unqueueAll()
	s.freeSending()
	if len(s.e.streams) < maxFreeStreams {
		*s = stream{e: s.e, ticket: s.ticket, freed: true}
		s.e.streams = append(s.e.streams, s)
	}
}

func (s *stream) outcome() Outcome {
	o := Outcome{
		Status: int(s.status), Reason: s.reason, Err: s.err, Retries: int(s.tries),
		Received: s.half[up].got, Sent: s.half[down].sent, Duration: s.e.now - s.started, Answer: s.answer,
		New: s.fresh, Endpoint: s.ep,
	}
	if s.sent > 0 {
		o.Placed = s.sent - s.started
	}
	if s.waited > 0 {
		o.Wait = s.waited - s.started
	}
	return o
}

// blame records why the stream ends. The first reason wins, because later ones follow from it.
func (s *stream) blame(r Reason, err error) {
	if s.reason == ReasonNone {
		s.reason, s.err = r, err
	}
}

// release tells the endpoint that the request is no longer in flight there.
func (s *stream) release() {
	if !s.picked {
		return
	}
	s.picked = false
	defer s.e.rescue(nil) // the stream must end properly even if it panics
	s.ep.Release()
}

func (s *stream) unlinkLeg(side dir) {
	c := s.leg[side]
	if c == nil {
		return
	}
	s.half[1-side].ready.unlink() // what was to be sent there
	if side == up {
		s.countHead(0)
		c.queued -= int(s.held)
		s.held = 0
		c.giveCredit()
		if s.plan.GoAway {
			s.e.drainConn(c)
		}
	} else {
		s.release()
	}
	c.streamEnded(s.id[side], &s.half[side])
	delete(c.streams, s.id[side])
	s.leg[side] = nil
	c.idleSince = s.e.now
	s.e.closeIfDone(c)
	c.pool.serve()
}

// reset sends RST_STREAM on one side and removes the stream from it.
func (s *stream) reset(side dir, code http2.ErrCode) {
	c := s.leg[side]
	if c == nil {
		return
	}
	if side == down {
		c.owed += int(s.half[down].recv)
	}
	if side == up || !s.e.delays(c, s) {
		c.writeReset(s.id[side], code)
	}
	c.rememberReset(s.id[side])
	s.unlinkLeg(side)
}

// abort ends the stream on both sides: the client gets code, the backend gets CANCEL.
func (s *stream) abort(r Reason, err error, code http2.ErrCode) {
	switch r {
	case ReasonDeadline, ReasonDrain, ReasonAbort, ReasonRetired, ReasonMemory:
		s.e.Count.reset(resetByEngine)
	default: // a peer's reset was counted when its frame came
	}
	s.blame(r, err)
	if c := s.leg[up]; c != nil && r != ReasonClientReset {
		c.budget.Earn(budget.Completed)
	}
	s.reset(up, code)
	s.reset(down, http2.ErrCodeCancel)
	s.wait.unlink() // if it waits for a connection
	s.release()
	s.stopLocal()
	s.stopGuest()
	s.endIfDone()
}

// unqueueAll drops everything that waits to be sent.
func (s *stream) unqueueAll() {
	for d := range s.half {
		s.half[d].q.clear(s.e)
		s.half[d].ready.unlink()
	}
	s.lent = 0
	s.keepTrailers(nil)
}

// node is a stream's place in one list; it is unlinked when its list is nil.
type node struct {
	next, prev *node
	in         *list
	s          *stream
	d          dir // the direction that is ready, on a connection's ready list
}

// list is a doubly linked list through the streams: it allocates nothing, and a stream that ends leaves all its lists.
type list struct {
	first, last *node
	n           int
}

func (l *list) push(n *node) {
	if n.in != nil {
		return
	}
	n.in, n.prev, n.next = l, l.last, nil
	if l.last == nil {
		l.first = n
	} else {
		l.last.next = n
	}
	l.last = n
	l.n++
}

func (n *node) unlink() {
	l := n.in
	if l == nil {
		return
	}
	if n.prev == nil {
		l.first = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.last = n.prev
	} else {
		n.next.prev = n.prev
	}
	l.n--
	n.next, n.prev, n.in = nil, nil, nil
}

// pop removes the first stream. There must be one.
func (l *list) pop() *stream {
	n := l.first
	n.unlink()
	return n.s
}

// drain pops the streams that are on the list now: those pushed meanwhile stay behind.
func (l *list) drain(yield func(*stream) bool) {
	for n := l.n; n > 0 && l.first != nil; n-- {
		if !yield(l.pop()) {
			return
		}
	}
}
