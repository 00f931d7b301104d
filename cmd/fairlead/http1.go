package main

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// stall is how long an HTTP/1.1 client may take nothing of what is written to it: as on the frame lane.
	stall = 30 * time.Second
	// bodyRest is how long the rest of a body is waited for once there is an answer. net/http reads up to 256 KiB of it, without any bound of time, so that
	// the connection can be used again: who sends one byte a minute would have it, and a goroutine, for half a year.
	bodyRest = 5 * time.Second
)

// patientNoMore bounds what net/http does not: clients over HTTP/1.1 that are slow to send a body that is not needed any more, or to take an answer.
//
// And it ends the connection after every chunked body. RFC 9112 §6.1 asks for that where there was a Content-Length too, which net/http has forgotten by now: what
// follows such a body may be a request that somebody has hidden from a proxy in front.
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
		if r.Body != http.NoBody {
			b.rest = sync.OnceFunc(func() { // the writer's and the deferred one are the handler's
				_ = b.control.SetReadDeadline(time.Now().Add(bodyRest)) // none to be set when it was hijacked
				_ = r.Body.Close()
				_ = b.control.SetReadDeadline(time.Time{})
			})
		}
		_ = b.control.SetWriteDeadline(time.Time{}) // of the request before
		defer b.end()
		next.ServeHTTP(b, r)
	})
}

// bounded is a response whose client may be slow.
type bounded struct {
	http.ResponseWriter
	control  *http.ResponseController
	rest     func() // ends the request's body. Nil: there is none
	hijacked bool
}

// end is deferred: what is buffered is still to be written.
func (b *bounded) end() {
	if b.hijacked {
		return
	}
	if b.rest != nil {
		b.rest()
	}
	b.hurry()
}

// hurry gives the client time for the next write.
func (b *bounded) hurry() { _ = b.control.SetWriteDeadline(time.Now().Add(stall)) }

// WriteHeader ends the body first: net/http does so with the final head, which must say whether the connection goes on.
func (b *bounded) WriteHeader(code int) {
	if code >= http.StatusOK && b.rest != nil {
		b.rest()
	}
	b.hurry()
	b.ResponseWriter.WriteHeader(code)
}

// Write may be the one that sends the head.
func (b *bounded) Write(p []byte) (int, error) {
	if b.rest != nil {
		b.rest()
	}
	b.hurry()
	return b.ResponseWriter.Write(p)
}

// Flush is found by type assertion, FlushError by http.ResponseController.
func (b *bounded) Flush() { _ = b.FlushError() }

// FlushError is Flush with its error.
func (b *bounded) FlushError() error {
	if b.rest != nil {
		b.rest()
	}
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
