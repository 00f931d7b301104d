package backend

import (
	"bytes"
	"errors"
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

// bodyError is a failure to read the request's own body: the caller's fault, not the backend's.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "reading request body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// Hold reads a short body of known length and puts it in the place of r.Body, before a place is taken for the request: a client
// that has announced a length sends it without waiting for an answer, and neither a backend nor a place waits for a slow one. It
// returns when the body was read or cannot be: who gives it a deadline sets one on the connection. A body that is long, of unknown
// length or beyond what from may have held stays what it is, to be streamed. Whoever calls it calls end when the request has ended.
func (u *Upstream) Hold(r *http.Request, from bound.Source) (end func(), err error) {
	n, grant := r.ContentLength, u.owner.grant
	if r.Body == nil || r.Body == http.NoBody || n <= 0 || n > maxHeld || len(r.Trailer) > 0 {
		return func() {}, nil
	}
	place, ok := u.owner.buffered.Take(from, max(n, minCharged), maxHeldTotal)
	if !ok {
		return func() {}, nil
	}
	if grant != nil && !grant(n) {
		place.Leave()
		return func() {}, nil
	}
	end = sync.OnceFunc(func() {
		place.Leave()
		if grant != nil {
			grant(-n)
		}
	})
	held := make([]byte, n)
	if _, err := io.ReadFull(r.Body, held); err != nil {
		end()
		return nil, &failure{kind: failBody, err: &bodyError{fmt.Errorf("%d bytes were announced: %w", n, err)}}
	}
	r.Body = heldBody{bytes.NewReader(held)}
	return end, nil
}

// heldBody is what Hold leaves in a request.
type heldBody struct{ *bytes.Reader }

// Close leaves the memory to who has called Hold.
func (heldBody) Close() error { return nil }

// tries are a request's body for one try after the other: held, or streamed and sent once.
type tries struct {
	stream io.ReadCloser // nil: there is none
	// touched: somebody has begun to read what is streamed.
	touched atomic.Bool
}

// next is the body for one try.
func (t *tries) next() io.ReadCloser {
	switch b := t.stream.(type) {
	case nil:
		return http.NoBody
	case heldBody:
		r := *b.Reader // which nobody has read
		return heldBody{&r}
	}
	return &streamedBody{t: t}
}

// rewind reports whether the body can be sent again from its beginning.
func (t *tries) rewind() bool { return !t.touched.Load() }

// end closes what is streamed.
func (t *tries) end() {
	if t.stream != nil {
		_ = t.stream.Close() // nobody reads any more
	}
}

// streamedBody is one try's view of a stream. Closing it before the first Read leaves the stream for the next try: a failed dial must not close the client's body.
type streamedBody struct {
	t      *tries
	closed atomic.Bool
}

func (s *streamedBody) Read(p []byte) (int, error) {
	if s.closed.Load() {
		return 0, &bodyError{http.ErrBodyReadAfterClose}
	}
	s.t.touched.Store(true)
	n, err := s.t.stream.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &bodyError{err}
	}
	return n, err
}

func (s *streamedBody) Close() error {
	s.closed.Store(true)
	if s.t.touched.Load() {
		s.t.end() // wakes a Read that is under way
	}
	return nil
}
