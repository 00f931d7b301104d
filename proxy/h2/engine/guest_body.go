package engine

import (
	"fmt"
	"io"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// guestBuffer is how much of a guest's request body is queued before its caller has to wait, and
// the largest response body that Take returns as a whole.
const guestBuffer = 64 << 10

// Pass accepts a part of the request's body, with the error of reading it. It reports whether to go
// on, and whether there was no room yet.
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

// Take returns what has come of the response; the head's Status is 0 until the final one has come.
// A non-nil body is the whole body.
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

// Read reads the body's available bytes, and reports whether there are more. At the end it returns
// io.EOF.
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

// Trailers returns the trailers of a response that was read to its end.
func (g *Guest) Trailers() []hpack.HeaderField { return g.trailers }

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
