package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/budget"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// maxInterims bounds the 1xx heads of one response. A backend is not trusted to stop.
const maxInterims = 16

// responseBlock handles a field block from a backend. Its fields are e.fields.
func (e *Engine) responseBlock(c *Conn, id uint32) *connError {
	s := c.streams[id]
	if s == nil {
		if c.idle(id) {
			return &connError{http2.ErrCodeProtocol, "HEADERS on a stream we did not open"}
		}
		return nil
	}
	if s.waited != 0 {
		return e.responseTrailers(c, s)
	}
	if e.fields.TooLarge() {
		return e.violation(s, down, http2.ErrCodeEnhanceYourCalm, "response head too large")
	}
	r, err := e.fields.Response()
	if err != nil {
		return e.violation(s, down, http2.ErrCodeProtocol, err.Error())
	}
	if r.Status < 200 {
		return e.interim(c, s, r)
	}
	return e.response(c, s, r)
}

// interim forwards a 1xx head (RFC 9110 §15.2).
func (e *Engine) interim(c *Conn, s *stream, r wire.ResponseHead) *connError {
	s.interims++
	if c.blockES || r.Status == http.StatusSwitchingProtocols || s.interims > maxInterims { // §8.1, §8.6
		return e.violation(s, down, http2.ErrCodeProtocol, "interim response that must not be")
	}
	// An interim answer has no content, and says no length (RFC 9110 §8.6).
	fields := slices.DeleteFunc(s.kept(r.Fields), func(f hpack.HeaderField) bool { return f.Name == "content-length" })
	if g := s.guest; g != nil {
		if g.hinted += e.fields.Size(); g.hinted > e.lim.maxHeader { // its caller may not come to take them
			return e.violation(s, down, http2.ErrCodeEnhanceYourCalm, "interim responses too large")
		}
		r.Fields = fields
		e.interimGuest(g, r)
		return nil
	}
	s.leg[up].writeHeaders(s.id[up], false, e.fields.Pseudo(), fields)
	return nil
}

// kept are the fields of a response head that are forwarded.
func (s *stream) kept(fields []hpack.HeaderField) []hpack.HeaderField {
	remove := s.plan.RemoveResponse
	if remove == nil {
		return fields
	}
	return slices.DeleteFunc(fields, func(f hpack.HeaderField) bool { return remove(f.Name) })
}

// response forwards the final head.
func (e *Engine) response(c *Conn, s *stream, r wire.ResponseHead) *connError {
	if !c.useful {
		c.useful = true
		c.pool.works()
	}
	d := &s.half[down]
	s.noBody = s.method == methodHead || r.Status == http.StatusNoContent || r.Status == http.StatusNotModified
	if c.blockES && r.ContentLength > 0 && !s.noBody {
		return e.violation(s, down, http2.ErrCodeProtocol, "content-length does not match")
	}
	switch h, ok := e.accepts(s, r.Status); {
	case !ok:
		return nil
	case h != nil:
		s.blame(ReasonRejected, fmt.Errorf("response %d rejected", r.Status))
		e.reset(s, down, http2.ErrCodeCancel)
		e.serveInstead(s, h)
		return nil
	}
	s.waited = e.now
	s.answer = e.now - s.sent
	s.status = int16(r.Status)
	d.declared, d.end, d.head, d.sentEnd = r.ContentLength, c.blockES, true, c.blockES
	e.freeSending(s)
	s.half[up].q.forget(e)
	e.weigh(s)
	if r.Fields = s.kept(r.Fields); s.guest != nil {
		e.headGuest(s, r, c.blockES)
	} else {
		s.leg[up].finalHead(s, c.blockES, e.fields.Pseudo(), r.Fields)
	}
	if c.blockES {
		e.review(s)
	}
	return nil
}

// finalHead writes the head of a response. One that says how long its body is waits for the body's first bytes if nothing else is to be written: Go's servers write
// the two on their own, and a client can do nothing with the first. What holds a head back ends with the next output on the connection, or the next tick. The client has
// said all that it has to say, so that it is not what the backend waits for, and could take a body.
func (c *Conn) finalHead(s *stream, end bool, lists ...[]hpack.HeaderField) {
	d := &s.half[down]
	idle := !c.dirty && !c.flushing && !c.closing && len(c.out) < maxHeld
	c.writeHeaders(s.id[up], end, lists...)
	if idle && !end && d.declared > 0 && s.half[up].end && !s.noBody && !s.plan.LongRunning && d.window > 0 && c.window > 0 {
		c.hold()
	}
}

// maxHeld is how much may be held back: some twenty heads.
const maxHeld = 4 << 10

func (e *Engine) responseTrailers(c *Conn, s *stream) *connError {
	d := &s.half[down]
	switch {
	case d.end:
		return e.violation(s, down, http2.ErrCodeStreamClosed, "HEADERS after END_STREAM")
	case !c.blockES:
		return e.violation(s, down, http2.ErrCodeProtocol, "second HEADERS without END_STREAM")
	case e.fields.TooLarge():
		return e.violation(s, down, http2.ErrCodeEnhanceYourCalm, "trailers too large")
	case d.declared >= 0 && d.got != d.declared && !s.noBody:
		return e.violation(s, down, http2.ErrCodeProtocol, "content-length does not match")
	}
	trailers, err := e.fields.Trailers(s.plan.RemoveResponse)
	if err != nil {
		return e.violation(s, down, http2.ErrCodeProtocol, err.Error())
	}
	e.keepTrailers(s, down, trailers)
	e.push(s, down, nil, true)
	return nil
}

// backendReset handles RST_STREAM from a backend.
func (e *Engine) backendReset(s *stream, code http2.ErrCode) {
	c := s.leg[down]
	e.unlinkLeg(s, down)
	err := fmt.Errorf("backend reset the stream: %v", code)
	switch {
	case s.half[down].end: // the response is complete: it only does not want the rest of the upload (§8.1)
		if !s.half[up].sentEnd {
			e.discardUpload(s)
		}
		e.review(s)
	case code == http2.ErrCodeRefusedStream: // §8.7: not processed
		if e.oneTooMany(s, c) {
			e.resend(s)
			return
		}
		e.failed(s, failure{reason: ReasonRefused, err: err, unprocessed: true})
	default:
		e.failed(s, failure{reason: ReasonReset, err: err, code: code})
	}
}

// oneTooMany reports whether a refused request was beyond what the connection's SETTINGS have come to allow since it
// was sent. That is nobody's fault and uses up no try: it waits for room as if it had not been sent.
func (e *Engine) oneTooMany(s *stream, c *Conn) bool {
	to := s.sending
	return to != nil && to.slot > int(min(c.peerStreams, topStreamID)) && !s.half[up].q.lost && !s.half[down].head
}

// backendGone ends a stream whose connection broke.
func (e *Engine) backendGone(c *Conn, s *stream, err error) {
	if s.half[down].end {
		if !s.half[up].sentEnd {
			e.discardUpload(s)
		}
		e.review(s)
		return
	}
	if err == nil {
		err = errors.New("connection closed")
	}
	// After a panic nothing is sent again: it could be what the engine panicked at.
	e.failed(s, failure{reason: ReasonLost, err: err, unheard: !c.heard, final: errors.Is(err, errPanicked)})
}

// goAwayFrame handles GOAWAY (§6.8).
func (e *Engine) goAwayFrame(c *Conn, h wire.FrameHeader, p []byte) *connError {
	switch {
	case h.StreamID != 0:
		return &connError{http2.ErrCodeProtocol, "GOAWAY on a stream"}
	case len(p) < 8:
		return &connError{http2.ErrCodeFrameSize, "GOAWAY cut short"}
	}
	e.Count.Received[c.side].Add(1)
	if c.side == up {
		// The client opens no more streams. What runs is finished.
		if c.goAway != goAwayFinal {
			c.goAway, c.lastAccepted = goAwayFinal, c.maxID
		}
		e.closeIfDone(c)
		return c.spend(budget.Control)
	}
	last := binary.BigEndian.Uint32(p) & topStreamID
	err := fmt.Errorf("backend sent GOAWAY: %v", http2.ErrCode(binary.BigEndian.Uint32(p[4:])))
	c.drained = true
	for _, id := range slices.Sorted(maps.Keys(c.streams)) {
		if s := c.streams[id]; s != nil && id > last {
			e.unlinkLeg(s, down)
			e.failed(s, failure{reason: ReasonRefused, err: err, unprocessed: true})
		}
	}
	e.closeIfDone(c)
	c.pool.grow()
	return c.spend(budget.Control)
}

// failure is why one try to forward a stream has come to nothing.
type failure struct {
	reason      Reason
	err         error
	code        http2.ErrCode // the backend's, if it sent one
	unprocessed bool          // no backend has done anything for the request
	unheard     bool          // the backend has not even acknowledged our SETTINGS, which it has to handle first
	final       bool          // another try would not help
}

// failed tries another connection, or tells the client. The backend's leg is gone already.
func (e *Engine) failed(s *stream, f failure) {
	defer e.rescueStream(s)
	if s.half[down].head {
		code := http2.ErrCodeInternal // as a broken body of ReverseProxy ends
		if f.code == http2.ErrCodeCancel || f.code == http2.ErrCodeEnhanceYourCalm {
			code = f.code // says nothing wrong about the client
		}
		e.abort(s, f.reason, f.err, code)
		return
	}
	if f.unprocessed {
		s.sent = 0 // as if it had not been
	}
	if e.mayRetry(s, f) {
		e.retry(s, f.reason)
		return
	}
	if f.reason == ReasonDial && e.refuses(s) {
		e.abort(s, f.reason, f.err, http2.ErrCodeRefusedStream)
		return
	}
	if e.mayIdle(s, f) {
		e.idling.push(&s.wait)
		return
	}
	s.blame(f.reason, f.err)
	e.answerFailure(s)
}

// mayIdle reports whether the request is one that waits for a backend which restarts: nothing can be dialled, so nothing was sent, or only what may be
// sent again.
func (e *Engine) mayIdle(s *stream, f failure) bool {
	to := s.sending
	if f.reason != ReasonDial || to == nil || to.wait <= 0 || s.half[up].q.lost {
		return false
	}
	if to.idle == 0 {
		to.idle = e.now + to.wait
	}
	return e.now < to.idle
}

// placeIdling lets every request that waits look for an endpoint again, any one: it may be another that has come back.
func (e *Engine) placeIdling() {
	for n := e.idling.n; n > 0; n-- { // those that come back wait for the next time
		if s := e.idling.pop(); s != nil {
			s.sending.tried = s.sending.tried[:0]
			e.resend(s)
		}
	}
}

// mayRetry follows design §4: what no backend has processed may be sent again whatever the method, other requests only if the plan
// says so; and in any case only if the whole body is still here.
func (e *Engine) mayRetry(s *stream, f failure) bool {
	to := s.sending
	if f.final || to == nil || s.half[up].q.lost || s.tries >= to.retries {
		return false
	}
	if f.reason == ReasonDial {
		return true // it has cost no backend anything
	}
	return (f.unprocessed || to.again || f.unheard && to.safe()) && (to.budget == nil || to.budget())
}

// safe reports whether a request changes nothing at the backend (RFC 9110 §9.2.1). Watches are such: they are not sent again after they may have begun, but net/http's
// servers give a connection up whose SETTINGS they have not come to read within two seconds, with all that was sent on it, and a crowd of clients can keep
// one as busy as that.
func (to *sending) safe() bool {
	return len(to.fields) > 0 && (to.fields[0].Value == "GET" || to.fields[0].Value == "HEAD")
}

// retry sends the request again from its beginning.
func (e *Engine) retry(s *stream, after Reason) {
	s.tries++
	if heard := s.plan.Forward.Retried; heard != nil {
		heard(after)
	}
	s.sending.tried = append(s.sending.tried, s.ep)
	e.resend(s)
}

// resend looks for an endpoint for all of the request.
func (e *Engine) resend(s *stream) {
	u := &s.half[up]
	u.credit -= int32(u.q.kept) // given when it was sent the first time
	u.q.rewind()
	u.head, u.sentEnd, u.sent = false, false, 0
	e.place(s)
}

// answerFailure answers a request that could not be forwarded.
func (e *Engine) answerFailure(s *stream) {
	e.leaveWait(s)
	if s.plan.Fail != nil {
		if h := s.plan.Fail(e.outcome(s)); h != nil {
			e.serveInstead(s, h)
			return
		}
	}
	if s.guest != nil {
		e.dismiss(s, nil)
		return
	}
	e.discardUpload(s)
	switch s.reason {
	case ReasonDeadline:
		e.answer(s, http.StatusGatewayTimeout)
	case ReasonTooLarge:
		e.answer(s, http.StatusRequestHeaderFieldsTooLarge)
	case ReasonReset, ReasonBadResponse:
		e.answer(s, http.StatusBadGateway)
	default:
		e.answer(s, http.StatusServiceUnavailable)
	}
}

// serveInstead lets a handler answer in place of the backend. The request's body is of no use to it.
func (e *Engine) serveInstead(s *stream, h http.Handler) {
	if s.guest != nil {
		e.dismiss(s, h)
		return
	}
	head := wire.Head{ContentLength: 0, EndStream: true}
	if s.sending != nil { // else it was not to be forwarded
		head.Restore(s.sending.fields)
	}
	e.freeSending(s)
	e.discardUpload(s)
	e.serveLocal(s, &head, h)
}
