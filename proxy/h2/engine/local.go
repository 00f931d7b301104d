package engine

import (
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// Local is a stream that an http.Handler of this process answers (it is not the local apiserver's).
// The driver runs the handler, see Config.Serve.
type Local struct {
	Changed sync.Cond // on the driver's mutex: the stream, its queues or their ends have changed
	// Cancel is called under the mutex, with a Failure, if the stream ends before the handler has returned. May be nil.
	Cancel func(error)

	c *Conn   // the client's
	s *stream // nil after the stream has ended or the response is complete
}

// serveLocal hands the stream to a handler of this process.
func (s *stream) serveLocal(h *wire.Head, handler http.Handler) {
	if handler == nil {
		s.e.answer(s, http.StatusInternalServerError)
		return
	}
	s.countHead(handled * int(s.head))
	l, run := s.e.Serve(s.leg[up], h, handler)
	l.c, l.s, s.local = s.leg[up], s, l
	s.e.callLater(run)
}

func (s *stream) stopLocal() {
	l := s.local
	if l == nil {
		return
	}
	s.local, l.s = nil, nil
	l.Changed.Broadcast()
	if l.Cancel != nil { // now: the context of a connection that is cut ends soon, too, for no cause
		l.Cancel(&Failure{Outcome: s.outcome()})
	}
}

// Gone reports whether the stream has ended, or its response is complete.
func (l *Local) Gone() bool { return l.s == nil }

// Recovered handles a panic during a handler's turn.
func (l *Local) Recovered(v any) { l.c.e.recovered(l.c, v) }

// Abort ends the stream.
func (l *Local) Abort(err error) {
	if l.s != nil {
		l.s.abort(ReasonAbort, err, http2.ErrCodeInternal)
	}
}

// Expire resets the stream when the engine's clock shows at. Zero means not.
func (l *Local) Expire(at time.Duration) {
	if l.s != nil {
		l.s.e.arm(l.s, at)
	}
}

// Continue sends 100 Continue, unless the body or the response has begun.
func (l *Local) Continue() bool {
	if l.s == nil || l.s.half[up].got > 0 || l.s.half[down].head {
		return false
	}
	l.Head(http.StatusContinue, []hpack.HeaderField{{Name: ":status", Value: "100"}})
	return true
}

// Waits reports whether Read has nothing to return yet.
func (l *Local) Waits() bool { return l.s != nil && l.s.half[up].q.size == 0 && !l.s.half[up].end }

// Read reads what has come of the request's body, if Waits and Gone report false. Zero means its end.
func (l *Local) Read(p []byte) (n int) { return l.s.readBody(up, p) }

// Queued returns how many bytes of the response wait for the client.
func (l *Local) Queued() int {
	if l.s == nil {
		return 0
	}
	return l.s.half[down].q.size
}

// Head sends a response head. After a final one there must be no other.
func (l *Local) Head(status int, fields []hpack.HeaderField) {
	s := l.s
	if s == nil {
		return
	}
	if status >= 200 {
		s.localStatus(status)
		s.half[down].head = true
	}
	s.leg[up].writeHeaders(s.id[up], false, fields)
}

func (s *stream) localStatus(status int) {
	s.status, s.waited = int16(status), s.e.now
	if status == http.StatusUnauthorized {
		s.e.unwelcome(s.leg[up])
	}
}

// Send sends a part of the response's body.
func (l *Local) Send(p []byte) {
	if l.s != nil {
		l.s.push(down, p, false)
	}
}

// End ends the response. If no head was sent, fields is the whole response.
func (l *Local) End(status int, fields, trailers []hpack.HeaderField) {
	s := l.s
	if s == nil {
		return
	}
	s.local, l.s = nil, nil
	d := &s.half[down]
	if !d.head {
		s.localStatus(status)
		d.head, d.end, d.sentEnd = true, true, true
		s.leg[up].writeHeaders(s.id[up], true, fields)
		s.review()
		return
	}
	s.keepTrailers(trailers)
	s.push(down, nil, true)
}
