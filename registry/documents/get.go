package documents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// Question is one GET.
type Question struct {
	// Path is asked for, unescaped. Query is its query, without a question mark. Empty: none.
	Path, Query string
	// Accept is the Accept field.
	Accept string
	// ETag makes the question conditional (If-None-Match). Empty: it is not.
	ETag string
	// Limit bounds the body. Zero: 8 MiB, well above any discovery document seen: a thousand custom resources make one.
	Limit int64
	// Timeout bounds the exchange from dialling to the last byte. Zero: 5 s, as kube-apiserver has it for discovery.
	Timeout time.Duration
}

// Answer is what came back. Its body has been read to its end, so that the connection can be used again.
type Answer struct {
	// Status is the HTTP status.
	Status int
	// Header are the response's fields.
	Header http.Header
	// Body is the whole body.
	Body []byte

	path string // asked for
}

// Unexpected is the error of an answer whose status was not to be expected.
func (a *Answer) Unexpected() error {
	return &Error{ReasonStatus, fmt.Errorf("getting %s: %d %s", a.path, a.Status, http.StatusText(a.Status))}
}

// Invalid is the error of an answer that cannot be read.
func (a *Answer) Invalid(err error) error {
	return &Error{ReasonInvalid, fmt.Errorf("reading %s: %w", a.path, err)}
}

// Reason is why there is no answer, in one word from a fixed set: it labels metrics.
type Reason string

// The reasons.
const (
	// ReasonUnreachable: no connection, or it ended.
	ReasonUnreachable Reason = "unreachable"
	// ReasonTimeout: no answer, or no end of one, in time.
	ReasonTimeout Reason = "timeout"
	// ReasonStatus: an unexpected HTTP status.
	ReasonStatus Reason = "status"
	// ReasonTooLarge: more than the limit.
	ReasonTooLarge Reason = "too_large"
	// ReasonInvalid: a body that is not what it says, or that says what it may not.
	ReasonInvalid Reason = "invalid"
)

// Error is a failed question.
type Error struct {
	// Reason is the kind of failure.
	Reason Reason
	// Err is the cause, for the operator: it may hold addresses.
	Err error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// reasonOf is the reason of an error of this package. Anything else is ReasonUnreachable. Nil: empty.
func reasonOf(err error) Reason {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Reason
	}
	return ReasonUnreachable
}

const (
	defaultLimit   = 8 << 20
	defaultTimeout = 5 * time.Second
)

// Get asks a question over do, which sends a request to one backend.
func Get(ctx context.Context, do Do, q Question) (Answer, error) {
	timeout, limit := q.Timeout, q.Limit
	if timeout == 0 {
		timeout = defaultTimeout
	}
	if limit == 0 {
		limit = defaultLimit
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := do(ctx, newRequest(ctx, q))
	if err != nil {
		return Answer{}, broken(ctx, q, err)
	}
	defer res.Body.Close()
	if res.ContentLength > limit {
		return Answer{}, tooLarge(q, limit)
	}
	body, err := readAll(res.Body, res.ContentLength, limit)
	switch {
	case errors.Is(err, errTooLong):
		return Answer{}, tooLarge(q, limit)
	case err != nil:
		return Answer{}, broken(ctx, q, err)
	}
	return Answer{Status: res.StatusCode, Header: res.Header, Body: body, path: q.Path}, nil
}

const (
	// leastChunk and mostChunk are the pieces a body is read in: small documents are one, and large ones waste no more than a twentieth.
	leastChunk = 8 << 10
	mostChunk  = 1 << 20
)

// errTooLong is what readAll returns for a body beyond its limit.
var errTooLong = errors.New("too long")

// readAll reads a body of at most limit bytes. io.ReadAll would copy it into ever larger buffers, and leave four times as much behind as it returns; what is too
// long is held once here, and not put together.
func readAll(r io.Reader, announced, limit int64) ([]byte, error) {
	var chunks [][]byte
	size := min(max(announced+1, leastChunk), mostChunk)
	chunk := make([]byte, 0, size)
	for have := int64(0); ; {
		n, err := r.Read(chunk[len(chunk):cap(chunk)])
		chunk = chunk[:len(chunk)+n]
		have += int64(n)
		switch {
		case have > limit:
			return nil, errTooLong
		case errors.Is(err, io.EOF):
			return slices.Concat(append(chunks, chunk)...), nil
		case err != nil:
			return nil, err //nolint:wrapcheck // the caller does
		case len(chunk) == cap(chunk):
			size = min(2*size, mostChunk)
			chunks, chunk = append(chunks, chunk), make([]byte, 0, size)
		}
	}
}

func newRequest(ctx context.Context, q Question) *http.Request {
	req := (&http.Request{
		Method: http.MethodGet, URL: &url.URL{Scheme: "https", Path: q.Path, RawQuery: q.Query}, Header: make(http.Header, 4),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	req.Header.Set("Accept", q.Accept)
	if q.ETag != "" {
		req.Header.Set("If-None-Match", q.ETag)
	}
	return req
}

func broken(ctx context.Context, q Question, err error) error {
	reason := ReasonUnreachable
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		reason = ReasonTimeout
	}
	return &Error{reason, fmt.Errorf("getting %s: %w", q.Path, err)}
}

func tooLarge(q Question, limit int64) error {
	return &Error{ReasonTooLarge, fmt.Errorf("getting %s: more than %d bytes", q.Path, limit)}
}
