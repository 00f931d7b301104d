package proxy

import (
	"context"
	"io"
	"net/http"
)

// endInTime has a response's body end with its request's context. net/http's HTTP/2 client looks at the context only once the request's body was sent: while it
// waits for room to go on with it, at a backend that has begun its answer and reads no more, neither a deadline nor a client that goes away ends anything.
func endInTime(ctx context.Context, res *http.Response) {
	if res.ProtoMajor != 2 || res.Body == nil || res.Body == http.NoBody {
		return
	}
	body := res.Body
	res.Body = &timelyBody{ReadCloser: body, stop: context.AfterFunc(ctx, func() { _ = body.Close() })} // whoever reads is told
}

// timelyBody is a body that is closed when its time is over.
type timelyBody struct {
	io.ReadCloser
	stop func() bool
}

// Close ends the watch over the time too.
func (b *timelyBody) Close() error {
	b.stop()
	return b.ReadCloser.Close() //nolint:wrapcheck // this is the body
}
