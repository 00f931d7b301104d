package backend

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/fairlead-proxy/fairlead/internal/bound"
)

const (
	// maxHeld is the longest request body that is held.
	maxHeld = 256 << 10
	// maxHeldTotal limits the bodies held for all requests together: 256 of the longest. Beyond it,
	// or if the process holds too much for connections, bodies are streamed.
	maxHeldTotal = 64 << 20
	// minCharged is the least that a body is charged: a waiting request takes about as much.
	minCharged = 4 << 10
)

// bodyError is an error of the request's own body: the caller's fault, not the backend's.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "reading request body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// Hold reads a short body of known length into memory and replaces r.Body, before a place is taken
// for a stranger's request: neither the local apiserver nor a place waits for a slow client. It
// returns when the body was read or failed; a deadline must be set on the connection. A body that
// is long, of unknown length, or beyond the share of from is left to be streamed. The caller must
// call end when the request has ended.
func (u *Upstream) Hold(r *http.Request, from bound.Source) (end func(), err error) {
	n, grant := r.ContentLength, u.shared.grant
	if r.Body == nil || r.Body == http.NoBody || n <= 0 || n > maxHeld {
		return func() {}, nil
	}
	place, ok := u.shared.buffered.Take(from, max(n, minCharged), maxHeldTotal)
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

// heldBody is a body that Hold has read.
type heldBody struct{ *bytes.Reader }

// Streams reports whether a request has a body that Hold has left to be streamed.
func (*Upstream) Streams(r *http.Request) bool {
	_, held := r.Body.(heldBody)
	return r.Body != nil && r.Body != http.NoBody && !held
}

// Close does nothing: the memory belongs to Hold's caller.
func (heldBody) Close() error { return nil }

// tries provide a request's body for each try, until some of it was read.
type tries struct {
	stream io.ReadCloser // nil means no body
	// touched says that reading of stream has begun.
	touched atomic.Bool
}

// next returns the body for one try.
func (t *tries) next() io.ReadCloser {
	if t.stream == nil {
		return http.NoBody
	}
	return &streamedBody{t: t}
}

// end closes stream.
func (t *tries) end() {
	if t.stream != nil {
		_ = t.stream.Close() // nothing reads any more
	}
}

// streamedBody is one try's view of a stream. Closing it before the first Read leaves the stream
// open for the next try: a failed dial must not close the client's body.
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
		s.t.end() // ends a Read in progress
	}
	return nil
}
