package engine

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/budget"
	"github.com/fairlead-proxy/fairlead/internal/hold"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// requestBlock handles a field block from a client: a request, or trailers. The fields are in e.fields.
func (e *Engine) requestBlock(c *Conn, id uint32, selfDependent bool) *connError {
	if s := c.streams[id]; s != nil {
		return e.trailers(c, s)
	}
	if id <= c.maxID && !c.wasReset(id) {
		return &connError{http2.ErrCodeStreamClosed, "HEADERS on a closed stream"}
	}
	if id <= c.maxID || c.ignores(id) { // trailers that were in flight when we reset the stream, or after GOAWAY
		return nil
	}
	c.maxID = id
	if id >= e.lim.maxStreamID {
		e.drainConn(c) // ids are used up (§5.1.1)
	}
	switch {
	case len(c.streams) >= int(e.MaxStreams):
		return e.refuse(c, id, http2.ErrCodeRefusedStream, resetByLimit)
	case c.greedy() || c.crowded(handled*e.fields.Weight()):
		e.Memory.Refuse(hold.Stream)
		return e.refuse(c, id, http2.ErrCodeRefusedStream, resetByLimit)
	case selfDependent:
		return e.refuse(c, id, http2.ErrCodeProtocol, resetProtocol)
	case e.fields.TooLarge():
		s := e.newStream(c, id)
		s.half[up].end = c.blockES
		s.blame(ReasonTooLarge, nil)
		e.answer(s, 431)
		return c.spend(budget.Reset)
	}
	head := &e.head // in the engine, so that Decide's argument is not allocated
	*head = wire.Head{}
	err := e.fields.Request(head)
	head.EndStream = c.blockES
	if err != nil || head.EndStream && head.ContentLength > 0 { // §8.1.1
		return e.refuse(c, id, http2.ErrCodeProtocol, resetProtocol)
	}
	s := e.newStream(c, id)
	s.countHead(e.fields.Weight())
	s.half[up].end = head.EndStream
	s.half[up].declared = head.ContentLength
	switch s.headOnly = head.Method == http.MethodHead; {
	case head.Method == "CONNECT": // an API front door offers no tunnels
		e.answer(s, 405)
	case head.Path == "*": // OPTIONS, of a load balancer: net/http's server answers it so
		e.answer(s, 200)
	default:
		e.decide(c, s, head)
	}
	return nil
}

// refuse resets a stream that was not processed at all.
func (e *Engine) refuse(c *Conn, id uint32, code http2.ErrCode, why resetCause) *connError {
	e.Count.reset(why)
	c.writeReset(id, code)
	c.rememberReset(id)
	return c.spend(budget.Reset)
}

// decide calls Decide for the stream, and parks the stream if there is no plan yet.
func (e *Engine) decide(c *Conn, s *stream, h *wire.Head) {
	t := s.ticket
	if t == nil {
		t = &ticket{}
		t.resume = func(p Plan) { e.Resume(func() { e.resumed(t, p) }) }
		s.ticket = t
	}
	plan, ok := e.Decide(c, h, t.resume) // the Config's
	if ok {
		s.apply(h, plan)
		return
	}
	s.parked = true
	s.countHead(2 * int(s.head)) // here, and where it is decided
	head := *h
	head.Fields = slices.Clone(h.Fields)
	t.s, t.head = s, &head
}

// resumed applies the plan of a parked stream. If the stream has ended, it only calls Done.
func (e *Engine) resumed(t *ticket, p Plan) {
	s := t.s
	if s == nil {
		e.calls = append(e.calls, call{done: p.Done, outcome: t.end})
		return
	}
	defer e.rescue(s.leg[up])
	h := t.head
	t.s, t.head, t.end.Reason = nil, nil, ReasonClientReset // the ticket is used up: resume may be called twice
	s.ticket, s.parked = nil, false
	s.countHead(int(s.head) / 2)
	s.apply(h, p)
}

func (s *stream) apply(h *wire.Head, p Plan) {
	s.plan = kept{
		Forward: p.Forward, RemoveResponse: p.RemoveResponse, Fail: p.Fail, Done: p.Done, GoAway: p.GoAway,
		LongRunning: p.LongRunning, Finite: p.Finite, Resumes: p.Resumes, Apart: p.Apart, Owner: p.Owner,
	}
	if p.GoAway && p.LongRunning {
		s.e.drainConn(s.leg[up])
	}
	if p.Unwelcome {
		s.e.unwelcome(s.leg[up])
	}
	if p.Deadline > 0 {
		s.e.arm(s, s.started+p.Deadline)
	}
	switch {
	case p.Forward != nil:
		s.buildRequest(h, &p)
		s.countHead(int(s.head) + fieldSize*len(p.Set)) // the head may be short, and its user of thousands of groups
		s.sending.measure()
		s.half[up].q.keep = !h.EndStream // also without retries: one too many is sent again
		s.e.place(s)
	case p.Answer != nil:
		s.respond(p.Answer, s.e.dated(), p.Set)
	default:
		s.serveLocal(h, p.Serve)
	}
}

func (s *stream) buildRequest(h *wire.Head, p *Plan) {
	s.sending = s.e.newSending(p)
	req := s.sending.fields
	const pseudo = 4
	if n := pseudo + len(h.Fields) + len(p.Set); cap(req) < n {
		req = make([]hpack.HeaderField, 0, n) // growing it takes three times the memory when many come together
	}
	s.sending.named = p.Authority == ""
	req = append(req,
		hpack.HeaderField{Name: ":method", Value: h.Method},
		hpack.HeaderField{Name: ":scheme", Value: "https"}, // all backends use TLS
		hpack.HeaderField{Name: ":authority", Value: p.Authority},
		hpack.HeaderField{Name: ":path", Value: h.Target()})
	for _, f := range h.Fields {
		if f.Name == "trailer" || p.Remove != nil && p.Remove(f.Name) {
			continue
		}
		f.Sensitive = f.Sensitive || wire.Credential(f.Name)
		req = append(req, f)
	}
	s.sending.fields = append(req, p.Set...)
}

// trailers handles trailers. Those of a request are dropped: the backend may have forgotten the stream, and HEADERS on
// it are for net/http's server an error of the connection, which others share. DATA is one of the stream.
func (e *Engine) trailers(c *Conn, s *stream) *connError {
	d := c.side
	f := &s.half[d]
	switch {
	case f.end:
		return s.violation(d, http2.ErrCodeStreamClosed, "HEADERS after END_STREAM")
	case !c.blockES: // §8.1
		return s.violation(d, http2.ErrCodeProtocol, "second HEADERS without END_STREAM")
	case e.fields.TooLarge() || e.fields.Size() > e.headLimit(down):
		return s.violation(d, http2.ErrCodeEnhanceYourCalm, "trailers too large")
	case f.declared >= 0 && f.got != f.declared && (d == up || !s.noBody):
		return s.violation(d, http2.ErrCodeProtocol, "content-length does not match")
	}
	list, err := e.fields.Trailers(s.plan.RemoveResponse) // of a request only the check counts
	if err != nil {
		return s.violation(d, http2.ErrCodeProtocol, err.Error())
	}
	if d == down && !f.discard && (s.guest == nil || e.fields.Size() <= guestTrailers) {
		s.keepTrailers(list)
	}
	s.push(d, nil, true)
	return nil
}

// violation ends a stream whose peer on one side broke the protocol. A backend is only charged for the frame: clients
// decide how often they ask for what it answers wrongly, and others share its connection.
func (s *stream) violation(side dir, code http2.ErrCode, why string) *connError {
	s.e.Count.reset(resetProtocol)
	if side == down {
		s.reset(down, code)
		s.failed(failure{reason: ReasonBadResponse, err: errors.New(why), final: true})
		return nil
	}
	c := s.leg[up]
	s.abort(ReasonClientReset, fmt.Errorf("client broke the protocol: %s", why), code)
	return c.spend(budget.Reset)
}

func (s *stream) respond(a *Answer, date, set []hpack.HeaderField) {
	s.status, s.waited = int16(a.Status), s.e.now
	d := &s.half[down]
	d.head, d.end, d.sentEnd = true, true, len(a.Body) == 0
	s.leg[up].writeHeaders(s.id[up], d.sentEnd, a.Fields, date, set)
	d.q.show(a)
	if len(a.Body) > min(int(d.window), int(s.leg[up].window)) {
		s.countHead(int(s.head) + openStream)
	}
	s.advance(down)
}

// dated returns the Date field, made once a second.
func (e *Engine) dated() []hpack.HeaderField {
	if now := e.now.Truncate(time.Second); e.date == nil || now != e.dateOf {
		e.dateOf = now
		e.date = []hpack.HeaderField{{Name: "date", Value: e.Clock().UTC().Format(http.TimeFormat)}}
	}
	return e.date
}

// answer ends a stream with an empty response of our own.
func (e *Engine) answer(s *stream, status int) {
	fields := []hpack.HeaderField{{Name: ":status", Value: strconv.Itoa(status)}, {Name: "content-length", Value: "0"}}
	s.respond(&Answer{Status: status, Fields: fields}, nil, nil)
}
