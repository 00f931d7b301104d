package h2

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/textproto"
	"strconv"

	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// guest is a caller of Server.RoundTrip. Its stream ends with the response, its body's Close, or the request's context.
type guest struct {
	engine.Guest // guarded by the shard's mutex, except Came, Room and Over
	sh           *shard
	ctx          context.Context
	request      *http.Request
	interim      func(status int, head textproto.MIMEHeader) error
}

// RoundTrip forwards a request as if an HTTP/2 client had sent it and Config.Decide had returned the plan, whose
// Forward must be set. h is r's head, as valid as a client's, and gets the body's length: of r, only body, length and
// context are used. Its trailers are not forwarded. An answer that is not the backend's comes as a *Failure; if r's
// context ends, errors.Is finds the context's error. Plan.Done is called in any case, and has returned when RoundTrip
// or Read returns an error. As with http.RoundTripper, r's body is closed, perhaps later, and the response's must be
// read to its end or closed. Interim heads go to interim, which may end the request with an error; nil drops them.
func (s *Server) RoundTrip(
	r *http.Request, h *wire.Head, p engine.Plan, interim func(int, textproto.MIMEHeader) error,
) (*http.Response, error) {
	sh := s.shards[int(s.next.Add(1))%len(s.shards)]
	g := &guest{sh: sh, ctx: r.Context(), request: r, interim: interim}
	hasBody := r.Body != nil && r.Body != http.NoBody
	h.ContentLength, h.EndStream = -1, !hasBody
	if hasBody && r.ContentLength > 0 {
		h.ContentLength = r.ContentLength
	}
	if !sh.invite(g, h, p) {
		if hasBody {
			_ = r.Body.Close() // no upload goroutine closes it
		}
		if p.Done != nil {
			p.Done(engine.Outcome{Reason: engine.ReasonAbort, Err: errServerEnded})
		}
		return nil, errServerEnded
	}
	if hasBody {
		go g.upload() // ends with the body, or with the Read in progress when the stream ends
	}
	return g.answer()
}

// invite begins the stream. It reports false if the server has ended.
func (sh *shard) invite(g *guest, h *wire.Head, p engine.Plan) (begun bool) {
	sh.turn(g, func() {
		if begun = !sh.ended; begun { // even if Invite panics
			sh.e.Invite(&g.Guest, h, p)
		}
	})
	return begun
}

// ended waits until Plan.Done has returned, which another goroutine's turn may have to call.
func (g *guest) ended() {
	for !g.Over.Load() {
		<-g.Came()
	}
}

// abandon ends the stream if it has not ended yet.
func (g *guest) abandon(err error) { g.sh.turn(g, func() { g.Abort(err) }) }

const guestChunk = 16 << 10 // how much of a request's body is read at a time; a blocked body holds as much

func (g *guest) upload() {
	body := g.request.Body
	defer body.Close()
	buf := g.sh.pool.part.Get().(*partBytes) //nolint:forcetypeassert // the pool holds nothing else
	defer g.sh.pool.part.Put(buf)
	for more := true; more; {
		n, err := body.Read(buf[:])
		for wait := true; wait; {
			if g.sh.turn(g, func() { more, wait = g.Pass(buf[:n], err) }); wait {
				<-g.Room() // also signalled when the stream ends
			}
		}
	}
}

func (g *guest) answer() (*http.Response, error) {
	for {
		select {
		case <-g.Came():
		case <-g.ctx.Done():
			g.abandon(g.ctx.Err())
			g.ended()
			return nil, g.ctx.Err() //nolint:wrapcheck // as http.Transport
		}
		interims, head, body, err := g.takeHead()
		for i := range interims {
			if err == nil && g.interim != nil {
				header, _ := headerOf(interims[i].Fields)
				err = g.interim(interims[i].Status, textproto.MIMEHeader(header))
			}
		}
		if err != nil {
			g.abandon(err)
			g.ended()
			return nil, err
		}
		if head.Status == 0 {
			continue
		}
		res := &http.Response{
			StatusCode: head.Status, Status: strconv.Itoa(head.Status) + " " + http.StatusText(head.Status),
			Proto: "HTTP/2.0", ProtoMajor: 2, ContentLength: head.ContentLength, Request: g.request,
		}
		res.Header, res.Trailer = headerOf(head.Fields)
		b := &guestBody{g: g, res: res, whole: body != nil}
		b.rest.Reset(body)
		if res.Body = b; b.whole { // a complete response needs no further turn
			b.trailers()
		} else {
			b.stop = context.AfterFunc(g.ctx, func() { g.abandon(g.ctx.Err()) }) // ends an unread body with the request
		}
		return res, nil
	}
}

// takeHead calls Take under the mutex. A non-nil body is the whole body.
func (g *guest) takeHead() (interims []wire.ResponseHead, head wire.ResponseHead, body []byte, err error) {
	g.sh.lock()
	defer g.sh.leave(g)
	return g.Take()
}

type guestBody struct {
	g     *guest
	res   *http.Response
	rest  bytes.Reader // the whole body, if it came with the head
	whole bool         // everything is in rest, or was read
	more  bool         // the last Read left some
	stop  func() bool
}

// AtHand reports whether the next Read returns at once: while it does, the caller need not flush.
func (b *guestBody) AtHand() bool {
	if b.whole || b.more {
		return true
	}
	b.g.sh.lock()
	defer b.g.sh.settle()
	return b.g.AtHand()
}

// Read waits for the body's next bytes, and returns credit to the backend.
func (b *guestBody) Read(p []byte) (int, error) {
	for {
		if b.whole {
			return b.rest.Read(p)
		}
		n, wait, err := b.read(p)
		if err != nil {
			b.g.ended()
		}
		if !wait {
			return n, err
		}
		<-b.g.Came() // the end of the context also ends the stream, which signals Came
	}
}

func (b *guestBody) read(p []byte) (n int, wait bool, err error) {
	g := b.g
	g.sh.lock()
	defer g.sh.leave(g)
	if n, b.more, err = g.Read(p); err == io.EOF { //nolint:errorlint // its own
		b.whole = true
		b.trailers()
		b.stop()
	}
	return n, n == 0 && err == nil && len(p) > 0, err
}

// trailers sets the response's Trailer, as net/http's transport does.
func (b *guestBody) trailers() {
	for _, f := range b.g.Trailers {
		if b.res.Trailer == nil {
			b.res.Trailer = http.Header{}
		}
		b.res.Trailer.Add(f.Name, f.Value)
	}
}

// Close ends the request if the body was not read to its end.
func (b *guestBody) Close() error {
	if b.stop != nil { // else the whole body came with the head
		b.stop()
		b.g.sh.turn(b.g, func() { b.g.Leave(http.ErrBodyReadAfterClose) })
	}
	return nil
}
