package backend

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

const (
	// maxHeld is the longest request body that is kept for a retry.
	maxHeld = 256 << 10
	// maxHeldTotal bounds what all requests together keep: 256 of the longest. Beyond it bodies are streamed, and sent
	// once; so they are when the process holds too much for connections.
	maxHeldTotal = 64 << 20
)

// body is a request's body: held in memory, so that it can be sent again, or streamed and sent once.
type body struct {
	o      *owner
	held   []byte
	stream io.ReadCloser // nil: held, or there is none
	// touched: somebody has begun to read stream.
	touched atomic.Bool
	close   sync.Once
}

// bodyError is a failure to read the request's own body: the caller's fault, not the backend's.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "reading request body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// hold reads a short body of known length before anything is sent: a client that has announced a length sends it without waiting for an answer, and a backend is not
// kept waiting by a slow one.
func (o *owner) hold(req *http.Request) (*body, error) {
	b := &body{o: o}
	if req.Body == nil || req.Body == http.NoBody {
		return b, nil
	}
	n := req.ContentLength
	if n <= 0 || n > maxHeld || len(req.Trailer) > 0 {
		b.stream = req.Body
		return b, nil
	}
	if !o.keep(n) {
		b.stream = req.Body
		return b, nil
	}
	held := make([]byte, n)
	read := make(chan error, 1)
	go func() { // ends when the client has sent the body, or its connection has ended
		_, err := io.ReadFull(req.Body, held)
		_ = req.Body.Close() // it was read, or its error is at hand
		if err != nil {
			o.letGo(n)
		}
		read <- err
	}()
	select {
	case err := <-read:
		if err != nil {
			return nil, &bodyError{fmt.Errorf("%d bytes were announced: %w", n, err)}
		}
	case <-req.Context().Done():
		go func() { // ends with the one above
			_ = req.Body.Close() // wakes it, if the body can
			if <-read == nil {
				o.letGo(n)
			}
		}()
		return nil, req.Context().Err() //nolint:wrapcheck // the caller's own
	}
	b.held = held
	return b, nil
}

// keep asks for n bytes of memory.
func (o *owner) keep(n int64) bool {
	if o.buffered.Add(n) <= maxHeldTotal && (o.grant == nil || o.grant(n)) {
		return true
	}
	o.buffered.Add(-n)
	return false
}

// letGo gives back what keep has granted.
func (o *owner) letGo(n int64) {
	o.buffered.Add(-n)
	if o.grant != nil {
		o.grant(-n)
	}
}

// reader is the body for one try.
func (b *body) reader() io.ReadCloser {
	switch {
	case b.held != nil:
		return io.NopCloser(bytes.NewReader(b.held))
	case b.stream != nil:
		return &streamedBody{b: b}
	}
	return http.NoBody
}

// rewind reports whether the body can be sent again from its beginning.
func (b *body) rewind() bool { return b.stream == nil || !b.touched.Load() }

// end gives the memory back and closes the stream. It may be called more than once.
func (b *body) end() {
	b.close.Do(func() {
		if b.stream != nil {
			_ = b.stream.Close() // nobody reads any more
		}
		b.o.letGo(int64(len(b.held)))
	})
}

// streamedBody is one try's view of a stream. Closing it before the first Read leaves the stream for the next try: a failed dial must not close the client's body.
type streamedBody struct {
	b      *body
	closed atomic.Bool
}

func (s *streamedBody) Read(p []byte) (int, error) {
	if s.closed.Load() {
		return 0, &bodyError{http.ErrBodyReadAfterClose}
	}
	s.b.touched.Store(true)
	n, err := s.b.stream.Read(p)
	if err != nil && err != io.EOF {
		err = &bodyError{err}
	}
	return n, err
}

func (s *streamedBody) Close() error {
	s.closed.Store(true)
	if s.b.touched.Load() {
		s.b.end() // wakes a Read that is under way
	}
	return nil
}

// closeBody closes the body of a request that is not sent, as RoundTrip must.
func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // nobody has read it
	}
}
