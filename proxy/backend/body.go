package backend

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/fairlead-proxy/fairlead/proxy/bound"
)

const (
	// maxHeld is the longest request body that is kept for a retry.
	maxHeld = 256 << 10
	// maxHeldTotal bounds what all requests together keep: 256 of the longest. Beyond it bodies are streamed, and sent
	// once; so they are when the process holds too much for connections.
	maxHeldTotal = 64 << 20
	// minCharged is what the shortest counts for, since a request that waits for it takes about as much.
	minCharged = 4 << 10
)

// body is a request's body: held in memory, so that it can be sent again, or streamed and sent once.
type body struct {
	held   []byte
	place  bound.Place        // of what is held
	grant  func(n int64) bool // has granted what is held. Nil: nobody was asked
	stream io.ReadCloser      // nil: held, or there is none
	// touched: somebody has begun to read stream.
	touched atomic.Bool
	close   sync.Once
}

// bodyError is a failure to read the request's own body: the caller's fault, not the backend's.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "reading request body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// Hold reads a short body of known length and puts it in the place of r.Body, before a place is taken for the request: a client
// that has announced a length sends it without waiting for an answer, and neither a backend nor a place waits for a slow one. It
// returns when the body was read or cannot be: who gives it a deadline sets one on the connection. A body that is long, of unknown
// length or beyond what from may have held stays what it is, to be streamed. Whoever calls it calls end when the request has ended.
func (u *Upstream) Hold(r *http.Request, from bound.Source) (end func(), err error) {
	n := r.ContentLength
	if r.Body == nil || r.Body == http.NoBody || n <= 0 || n > maxHeld || len(r.Trailer) > 0 {
		return func() {}, nil
	}
	place, ok := u.owner.buffered.Take(from, max(n, minCharged), maxHeldTotal)
	if !ok {
		return func() {}, nil
	}
	grant := u.owner.grant
	if grant != nil && !grant(n) {
		place.Leave()
		return func() {}, nil
	}
	b := &body{held: make([]byte, n), place: place, grant: grant}
	if _, err := io.ReadFull(r.Body, b.held); err != nil {
		b.end()
		return nil, &failure{kind: failBody, err: &bodyError{fmt.Errorf("%d bytes were announced: %w", n, err)}}
	}
	r.Body = &heldBody{Reader: bytes.NewReader(b.held), body: b}
	return b.end, nil
}

// heldBody is what Hold leaves in a request. RoundTrip takes the body out of it, for each try.
type heldBody struct {
	*bytes.Reader
	body *body
}

// Close gives the memory back.
func (h *heldBody) Close() error {
	h.body.end()
	return nil
}

// bodyOf is the body of a request that is to be sent.
func bodyOf(req *http.Request) *body {
	if h, ok := req.Body.(*heldBody); ok {
		return h.body
	}
	if req.Body == nil || req.Body == http.NoBody {
		return &body{}
	}
	return &body{stream: req.Body}
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
		b.place.Leave()
		if b.grant != nil {
			b.grant(-int64(len(b.held)))
		}
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
