package engine

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/internal/budget"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// responseBlock handles a field block from a backend. Its fields are in e.fields.
func (e *Engine) responseBlock(c *Conn, id uint32) *connError {
	s := c.streams[id]
	if s == nil {
		if c.idle(id) {
			return &connError{http2.ErrCodeProtocol, "HEADERS on a stream we did not open"}
		}
		if c.blockES {
			c.endsLate(id, false)
		}
		return nil
	}
	if s.waited != 0 {
		return e.trailers(c, s)
	}
	if e.fields.TooLarge() || e.fields.Size() > e.headLimit(down) { // a part was dropped
		return s.violation(down, http2.ErrCodeEnhanceYourCalm, "response head too large")
	}
	r, err := e.fields.Response()
	if err != nil {
		return s.violation(down, http2.ErrCodeProtocol, err.Error())
	}
	if r.Status < 200 {
		return e.interim(c, s, r)
	}
	return e.response(c, s, r)
}

// interim forwards a 1xx head (RFC 9110 §15.2).
func (e *Engine) interim(c *Conn, s *stream, r wire.ResponseHead) *connError {
	const maxInterims = 16 // bounds the 1xx heads of one response. A backend is not trusted to stop
	s.interims++
	s.hinted += int32(e.fields.Size())
	many := s.interims > maxInterims || int(s.hinted) > e.headLimit(down) // no window bounds them
	if c.blockES || r.Status == http.StatusSwitchingProtocols || many {   // §8.1, §8.6
		return s.violation(down, http2.ErrCodeProtocol, "interim response not allowed")
	}
	if r.Fields = s.keep(r.Fields); s.guest != nil {
		s.guest.interims = append(s.guest.interims, r)
		e.wakeGuest(s.guest, down)
		return nil
	}
	s.leg[up].writeHeaders(s.id[up], false, e.fields.Pseudo(), r.Fields)
	return nil
}

// keep returns the fields of a response head that are forwarded. A guest's are counted: its client may read nothing.
func (s *stream) keep(fields []hpack.HeaderField) []hpack.HeaderField {
	if s.guest != nil {
		fields = slices.Clone(fields)
		s.lent += int32(s.e.fields.Size())
		s.keepTrailers(nil)
	}
	if remove := s.plan.RemoveResponse; remove != nil {
		fields = slices.DeleteFunc(fields, func(f hpack.HeaderField) bool { return remove(f.Name) })
	}
	return fields
}

func (e *Engine) response(c *Conn, s *stream, r wire.ResponseHead) *connError {
	if !c.useful {
		c.useful = true
		c.pool.proven()
	}
	d := &s.half[down]
	s.noBody = s.headOnly || r.Status == http.StatusNoContent || r.Status == http.StatusNotModified
	if c.blockES && r.ContentLength > 0 && !s.noBody {
		return s.violation(down, http2.ErrCodeProtocol, "content-length does not match")
	}
	leads := slices.ContainsFunc(r.Fields, func(f hpack.HeaderField) bool {
		return f.Name == "location" && f.Value != ""
	})
	switch h, ok := s.accepts(r.Status, leads); {
	case !ok:
		return nil
	case h != nil:
		s.blame(ReasonRejected, fmt.Errorf("response %d rejected", r.Status))
		s.reset(down, http2.ErrCodeCancel)
		s.serveInstead(h)
		return nil
	}
	s.waited = e.now
	if s.half[up].sentEnd {
		s.answer = e.now - max(s.sent, s.whole)
	}
	s.status = int16(r.Status)
	d.declared, d.end, d.head, d.sentEnd = r.ContentLength, c.blockES, true, c.blockES
	s.freeSending()
	s.half[up].q.forget(e)
	e.weigh(s)
	if r.Fields = s.keep(r.Fields); s.guest != nil {
		s.guest.head = r
		if s.guest.waits = s.bodyFollows(); !s.guest.waits { // as in finalHead
			e.wakeGuest(s.guest, down)
		}
	} else {
		s.leg[up].finalHead(s, c.blockES, e.fields.Pseudo(), r.Fields)
	}
	if c.blockES {
		s.review()
	}
	return nil
}

// finalHead writes the head of a response. If the head declares a length and there is no other output, it waits for the
// first bytes of the body: Go's servers write the two separately, and the head alone is of no use to the client. The
// wait ends with the next output on the connection, or the next tick. It is only for requests that are complete, so
// that the backend does not wait for the client, and for clients whose window allows a body.
func (c *Conn) finalHead(s *stream, end bool, lists ...[]hpack.HeaderField) {
	const maxDelayed = 4 << 10 // how much output may be delayed: about twenty heads
	idle := !c.dirty && !c.flushing && !c.closing && len(c.out) < maxDelayed
	c.writeHeaders(s.id[up], end, lists...)
	if idle && s.bodyFollows() && s.half[down].window > 0 && c.window > 0 {
		last := len(c.e.dirty) - 1 // the touch is undone: the output waits for the next one
		c.e.dirty = slices.Delete(c.e.dirty, last, last+1)
		c.dirty, c.delayed = false, true
	}
}

// bodyFollows reports whether a body's first bytes come at once after the head, and the client needs nothing before.
func (s *stream) bodyFollows() bool {
	d := &s.half[down]
	return !d.end && d.declared > 0 && s.half[up].end && !s.noBody && !s.plan.LongRunning
}

func (s *stream) backendReset(code http2.ErrCode) {
	c, to := s.leg[down], s.sending
	s.unlinkLeg(down)
	err := fmt.Errorf("backend reset the stream: %v", code)
	most := int(min(c.peerStreams, topStreamID))
	switch {
	case s.half[down].end: // the response is complete, and the backend does not read the rest of the upload (§8.1)
		s.discardUpload()
		s.review()
	case code == http2.ErrCodeRefusedStream: // §8.7: not processed
		c.budget.Earn(2*budget.Frame - budget.Opened) // what it has earned; each further try earns it anew
		// A request that exceeded the limit in SETTINGS that came after it was sent is no failure
		// and does not count as a try: it waits for room as if it were new.
		if to != nil && to.slot > most && !s.half[up].q.lost && !s.half[down].head {
			s.resend()
			return
		}
		s.failed(failure{reason: ReasonRefused, err: err, unprocessed: true})
	default:
		if code == http2.ErrCodeEnhanceYourCalm && to != nil && len(c.streams) > 0 {
			// Node does so while what others do not read fills a connection's 10 MB, and ends it after a hundred.
			c.drained, to.alone = true, true
			s.e.charge(s.plan.Owner, resetCost)
			c.pool.grow()
		}
		// Go's servers refuse so what exceeds their limit (§5.1.2). They may count a stream that they have just ended,
		// and so one too many for who takes the last place (golang/go#47635).
		over := code == http2.ErrCodeProtocol && to != nil && to.slot >= most
		s.failed(failure{reason: ReasonReset, err: err, code: code, unprocessed: over})
	}
}

// backendGone ends a stream whose connection broke.
func (e *Engine) backendGone(c *Conn, s *stream, err error) {
	if s.half[down].end { // as in backendReset
		s.discardUpload()
		s.review()
		return
	}
	// After a panic nothing is retried: the request could be what caused the panic.
	panicked := errors.Is(err, errPanicked)
	switch {
	case c.told != nil && !panicked:
		err = c.told
	case err == nil:
		err = errors.New("connection closed")
	}
	s.failed(e.blame(c, s, failure{reason: ReasonLost, err: err, unacked: !c.settingsAcked, final: panicked}))
}

// goAwayFrame handles GOAWAY (§6.8).
func (e *Engine) goAwayFrame(c *Conn, h http2.FrameHeader, p []byte) *connError {
	switch {
	case h.StreamID != 0:
		return &connError{http2.ErrCodeProtocol, "GOAWAY on a stream"}
	case len(p) < 8:
		return &connError{http2.ErrCodeFrameSize, "GOAWAY cut short"}
	}
	e.Count.Received[c.side].Add(1)
	if c.side == up {
		if c.goAway != goAwayFinal { // it may still open streams (§6.8), and learns that they are not handled
			e.finalGoAway(c)
		}
		return nil
	}
	c.drained = true
	e.tells(c, p)
	if err := e.takeBack(c, binary.BigEndian.Uint32(p)&topStreamID); err != nil {
		return err
	}
	e.closeIfDone(c)
	c.pool.grow()
	return nil
}

// takeBack retries the streams that a backend's GOAWAY leaves out: those above last. It visits all streams, of which
// there may be any number, so only for a lower last than before, and charges for it but for the first time.
func (e *Engine) takeBack(c *Conn, last uint32) *connError {
	cost, before := 0, c.maxID
	if c.lastAccepted != 0 {
		cost, before = len(c.streams), c.lastAccepted
	}
	if last >= before {
		return nil
	}
	if err := c.spend(cost); err != nil {
		return err
	}
	c.lastAccepted = last
	err := errors.New("backend sent GOAWAY")
	if c.told != nil {
		err = c.told
	}
	for s := range c.ordered(func(s *stream) bool { return s.id[down] > last }) {
		s.unlinkLeg(down)
		s.failed(e.blame(c, s, failure{reason: ReasonRefused, err: err, unprocessed: true, free: c.told == nil}))
	}
	return nil
}

type failure struct {
	reason      Reason
	err         error
	code        http2.ErrCode // the backend's, if it reset the stream
	unprocessed bool          // no backend has processed the request
	unacked     bool          // the backend has not even acknowledged our SETTINGS, which it handles first
	free        bool          // the backend ends its connection in order: that is no failure
	final       bool          // a retry would not help
}

// failed retries on another connection, or answers the client. The backend's leg has ended already.
func (s *stream) failed(f failure) {
	defer s.e.rescueStream(s)
	if f.unprocessed {
		s.sent = 0 // as if it had not been sent
	}
	switch answered := s.half[down].head; {
	case answered && s.plan.Resumes && f.reason == ReasonLost:
		s.blame(f.reason, f.err)
		s.endLongRunning(f.reason)
	case answered && (f.code == http2.ErrCodeCancel || f.code == http2.ErrCodeEnhanceYourCalm):
		s.abort(f.reason, f.err, f.code) // it does not blame the client
	case answered:
		s.abort(f.reason, f.err, http2.ErrCodeInternal) // ReverseProxy ends a broken body in the same way
	case s.mayRetry(f):
		s.e.retry(s, f)
	case f.reason == ReasonDial && s.refuses():
		s.abort(f.reason, f.err, http2.ErrCodeRefusedStream)
	case s.mayAwaitDial(f):
		s.e.awaitDial.push(&s.wait)
	default:
		s.blame(f.reason, f.err)
		s.answerFailure()
	}
}

// mayAwaitDial reports whether the request waits for a backend that restarts: no endpoint can be
// dialled, so nothing was sent, or only what may be sent again.
func (s *stream) mayAwaitDial(f failure) bool {
	to := s.sending
	if f.reason != ReasonDial || to == nil || to.wait <= 0 || s.half[up].q.lost {
		return false
	}
	to.dialUntil = cmp.Or(to.dialUntil, s.e.now+to.wait)
	return s.e.now < to.dialUntil
}

// mayRetry says so: a request that no backend has processed may be retried whatever its
// method, other requests only if the plan allows it; and only if the whole body is still here.
func (s *stream) mayRetry(f failure) bool {
	to := s.sending
	if f.final || to == nil || s.half[up].q.lost || s.tries >= to.retries {
		return false
	}
	if f.reason == ReasonDial || f.free {
		return true // no backend was involved, or it only ends a connection
	}
	// Safe requests change nothing at the backend (RFC 9110 §9.2.1). Watches are safe, too. They are not retried once
	// they may have begun, but net/http's servers close a connection, with all requests on it, whose SETTINGS they did
	// not read within two seconds. A crowd of clients can keep a server as busy as that.
	safe := len(to.fields) > 0 && (to.fields[0].Value == "GET" || to.fields[0].Value == "HEAD")
	return (f.unprocessed || to.again || f.unacked && safe) && (to.budget == nil || to.budget())
}

// retry sends the whole request again, to another endpoint if there is one. One that stays goes to the same after a
// reset and, once, after a connection's orderly end: kube-apiserver ends one for a bad token of any user on it.
func (e *Engine) retry(s *stream, f failure) {
	s.tries++
	s.plan.Forward.Retried(f.reason)
	if f.reason != ReasonReset && (!f.free || s.tries > 1) || !s.sending.stays {
		s.sending.tried = append(s.sending.tried, s.ep)
	}
	s.resend()
}

func (s *stream) resend() {
	u := &s.half[up]
	u.credit -= int32(u.q.kept) // it was given when the bytes were sent the first time
	u.q.rewind()
	u.head, u.sentEnd, u.sent = false, false, 0
	s.e.place(s)
}

func (s *stream) answerFailure() {
	s.wait.unlink()
	s.release()
	switch {
	case s.plan.Fail != nil:
		s.serveInstead(s.plan.Fail(s.outcome()))
	case s.guest != nil:
		s.dismiss(nil)
	default: // a handler has not begun its answer in time: there is nothing else without Fail
		s.discardUpload()
		s.e.answer(s, http.StatusGatewayTimeout)
	}
}

// serveInstead lets a handler answer instead of the backend, without the request's body.
func (s *stream) serveInstead(h http.Handler) {
	if s.guest != nil {
		s.dismiss(h)
		return
	}
	head := wire.Head{ContentLength: 0, EndStream: true}
	if s.sending != nil { // else it was not to be forwarded
		head.Restore(s.sending.fields)
	}
	s.freeSending()
	s.discardUpload()
	s.serveLocal(&head, h)
}
