package h2

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/textproto"
	"strconv"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// answer waits for the response.
func (g *guest) answer() (*http.Response, error) {
	for {
		select {
		case <-g.Came():
		case <-g.ctx.Done():
			g.abandon(g.ctx.Err())
			g.ended()
			return nil, g.ctx.Err() //nolint:wrapcheck // as http.Transport
		}
		interims, res, err := g.take()
		for i := range interims {
			if err == nil && g.interim != nil {
				err = g.interim(interims[i].Status, textproto.MIMEHeader(guestHeader(interims[i].Fields)))
			}
		}
		if err != nil {
			g.abandon(err)
			g.ended()
			return nil, err
		}
		if res != nil {
			return res, nil
		}
	}
}

// take returns what has come of the response. A complete response needs no further turn.
func (g *guest) take() (interims []wire.ResponseHead, res *http.Response, err error) {
	interims, head, body, err := g.takeHead()
	if err != nil || head.Status == 0 {
		return interims, nil, err
	}
	res = &http.Response{
		StatusCode: head.Status, Status: strconv.Itoa(head.Status) + " " + http.StatusText(head.Status), Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: guestHeader(head.Fields), ContentLength: head.ContentLength, Request: g.request,
	}
	b := &guestBody{g: g, res: res, whole: body != nil}
	b.rest.Reset(body)
	for _, names := range res.Header["Trailer"] {
		res.Trailer = announced(res.Trailer, names)
	}
	delete(res.Header, "Trailer") // as in net/http's transport
	if res.Body = b; b.whole {
		b.trailers()
	} else {
		b.stop = context.AfterFunc(g.ctx, func() { g.abandon(g.ctx.Err()) }) // ends an unread body with the request
	}
	return interims, res, nil
}

// takeHead calls Take under the mutex. A non-nil body is the whole body.
func (g *guest) takeHead() (interims []wire.ResponseHead, head wire.ResponseHead, body []byte, err error) {
	g.sh.lock()
	defer g.leave()
	return g.Take()
}

func guestHeader(fields []hpack.HeaderField) http.Header {
	header := make(http.Header, len(fields))
	values := make([]string, len(fields))
	for i := range fields {
		key := http.CanonicalHeaderKey(fields[i].Name)
		if known := header[key]; known != nil {
			header[key] = append(known, fields[i].Value)
			continue
		}
		values[i] = fields[i].Value
		header[key] = values[i : i+1 : i+1]
	}
	return header
}

// guestBody is the response's body for the caller.
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
	g := b.g
	g.sh.lock()
	defer g.sh.settle()
	return g.AtHand()
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
	defer g.leave()
	if n, b.more, err = g.Read(p); err == io.EOF { //nolint:errorlint // its own
		b.whole = true
		b.trailers()
		b.stop()
	}
	return n, n == 0 && err == nil && len(p) > 0, err
}

// trailers sets the response's Trailer, as net/http's transport does.
func (b *guestBody) trailers() {
	for _, f := range b.g.Trailers() {
		if b.res.Trailer == nil {
			b.res.Trailer = http.Header{}
		}
		b.res.Trailer.Add(f.Name, f.Value)
	}
}

// Close ends the request if the body was not read to its end.
func (b *guestBody) Close() error {
	if b.stop == nil {
		return nil // the whole body came with the head
	}
	b.stop()
	b.g.sh.lock()
	defer b.g.leave()
	b.g.Leave(http.ErrBodyReadAfterClose)
	return nil
}
