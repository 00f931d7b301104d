package front

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// stall is how long an HTTP/1.1 client may take nothing of what is written to it: as over
	// HTTP/2.
	stall = 30 * time.Second
	// bodyRest is how long the rest of a body is waited for after the answer. net/http reads up to
	// 256 KiB of it, without any bound of time, so that the connection can be used again: who sends
	// one byte a minute would have it, and a goroutine, for half a year.
	bodyRest = 5 * time.Second
)

// patientNoMore bounds what net/http does not: clients over HTTP/1.1 that are slow to send a body
// that is not needed any more, or to take an answer.
//
// And it ends the connection after every chunked body. RFC 9112 §6.1 asks for that where there was
// a Content-Length too, which net/http has forgotten by now: what follows such a body may be a
// request that somebody has hidden from a proxy in front.
func patientNoMore(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 1 {
			next.ServeHTTP(w, r)
			return
		}
		if len(r.TransferEncoding) > 0 {
			w.Header().Set("Connection", "close")
		}
		b := &bounded{ResponseWriter: w, control: http.NewResponseController(w)}
		_ = b.control.SetWriteDeadline(time.Time{}) // of the request before
		if r.Body != http.NoBody {
			// A backend may answer while it still reads: without this, net/http takes what is left
			// of the body for itself as soon as there is a response head (golang/go#15527), and the
			// backend gets a shorter one. It can fail only where it is not needed.
			_ = b.control.EnableFullDuplex()
			b.body = &watched{ReadCloser: r.Body}
			own := *r // net/http looks at its own one
			own.Body = b.body
			r = &own
		}
		next.ServeHTTP(b, r)
		b.end()
	})
}

// watched is a body that tells whether it was read to its end.
type watched struct {
	io.ReadCloser
	ended atomic.Bool
}

func (b *watched) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF { // net/http does not wrap it
		b.ended.Store(true)
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
}

// bounded is a response whose client may be slow.
type bounded struct {
	http.ResponseWriter
	control  *http.ResponseController
	body     *watched // nil: there is none
	headed   bool     // the final head was written
	hijacked bool
}

// head comes before the final head. What is left of a body at that time is nobody's next request:
// the connection ends with this answer.
func (b *bounded) head() {
	if !b.headed && b.body != nil && !b.body.ended.Load() {
		b.Header().Set("Connection", "close")
	}
	b.headed = true
}

// end comes after the handler: the client gets its answer at once, and some time for the rest of
// its body, so that it is not reset while it sends.
func (b *bounded) end() {
	if b.hijacked {
		return
	}
	b.head()
	b.hurry() // what is buffered is still to be written
	if b.body == nil || b.body.ended.Load() {
		return
	}
	_ = b.control.Flush()
	_ = b.control.SetReadDeadline(time.Now().Add(bodyRest))
	_ = b.body.Close()
	_ = b.control.SetReadDeadline(time.Time{})
}

// hurry gives the client time for the next write.
func (b *bounded) hurry() { _ = b.control.SetWriteDeadline(time.Now().Add(stall)) }

// WriteHeader may block as Write does. Interim heads (1xx) are followed by another.
func (b *bounded) WriteHeader(code int) {
	if code >= http.StatusOK {
		b.head()
	}
	b.hurry()
	b.ResponseWriter.WriteHeader(code)
}

// Write gives the client time for each piece.
func (b *bounded) Write(p []byte) (int, error) {
	b.head()
	b.hurry()
	return b.ResponseWriter.Write(p)
}

// Flush is found by type assertion, FlushError by http.ResponseController.
func (b *bounded) Flush() { _ = b.FlushError() }

// FlushError is Flush with its error.
func (b *bounded) FlushError() error {
	b.head()
	b.hurry()
	return b.control.Flush() //nolint:wrapcheck // this is the writer
}

// Hijack hands the connection over, without any deadline.
func (b *bounded) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	b.hijacked = true
	return b.control.Hijack() //nolint:wrapcheck // this is the writer
}

// Unwrap returns the writer beneath.
func (b *bounded) Unwrap() http.ResponseWriter { return b.ResponseWriter }
