package documents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Question is one GET.
type Question struct {
	// Path is the unescaped path to get, Query its query, without a question mark, or empty.
	Path, Query string
	// Accept is the Accept field.
	Accept string
	// ETag makes the request conditional (If-None-Match). Empty means that it is not.
	ETag string
	// Limit bounds the body. Zero means 8 MiB, well above any discovery document seen: a thousand
	// custom resources make one.
	Limit int64
	// Timeout bounds the exchange from dialling to the last byte. Zero means 5 s, kube-apiserver's
	// timeout for discovery.
	Timeout time.Duration
}

// Answer is a response. Its body has been read to its end, so that the connection can be used
// again.
type Answer struct {
	// Status is the HTTP status.
	Status int
	// Header are the response's fields.
	Header http.Header
	// Body is the whole body.
	Body []byte

	// Path is that of the request.
	Path string
}

// Unexpected returns the error for an unexpected status.
func (a *Answer) Unexpected() error {
	return &Error{ReasonStatus, fmt.Errorf("getting %s: %d %s", a.Path, a.Status, http.StatusText(a.Status))}
}

// Invalid returns the error for a response that cannot be parsed.
func (a *Answer) Invalid(err error) error {
	return &Error{ReasonInvalid, fmt.Errorf("reading %s: %w", a.Path, brief(err))}
}

// maxText bounds the text of an error. Parsers quote what they cannot read, and a backend may send
// megabytes of it, other ones each time. The text is kept, logged and shown.
const maxText = 1 << 10

// brief returns an error with at most so much text.
func brief(err error) error {
	if text := err.Error(); len(text) > maxText {
		return errors.New(strings.ToValidUTF8(text[:maxText], "") + "…")
	}
	return err
}

// maxDepth bounds how deep objects and lists are nested. Kubernetes' own documents have 9 levels,
// CustomResourceDefinitions with the schema of a Pod some 50.
const maxDepth = 200

// Bounded returns an error if the body, as JSON, has more objects or values than that, or more than
// 200 levels: decoded, an object of two bytes may take hundreds, and some libraries take the square
// of the depth. It need not be valid.
func (a Answer) Bounded(objects, values int) error {
	objectsFound, valuesFound, depth, deepest, quoted := 0, 0, 0, 0, false
	for i := 0; i < len(a.Body); i++ {
		switch c := a.Body[i]; {
		case c == '"':
			quoted = !quoted
		case quoted:
			if c == '\\' {
				i++
			}
		case c == '{', c == '[':
			depth++
			deepest = max(deepest, depth)
			if c == '{' {
				objectsFound++
			}
		case c == '}', c == ']':
			depth--
		case c == ',':
			valuesFound++
		}
	}
	if objectsFound > objects || valuesFound > values || deepest > maxDepth {
		return fmt.Errorf("decoding: %d objects, %d values and %d levels, at most %d, %d and %d", objectsFound, valuesFound, deepest, objects, values, maxDepth)
	}
	return nil
}

// Reason is why there is no response, in one word from a fixed set: it labels metrics.
type Reason string

// The reasons.
const (
	// ReasonUnreachable: no connection, or it ended.
	ReasonUnreachable Reason = "unreachable"
	// ReasonTimeout: no complete response in time.
	ReasonTimeout Reason = "timeout"
	// ReasonStatus: an unexpected HTTP status.
	ReasonStatus Reason = "status"
	// ReasonTooLarge: more than the limit.
	ReasonTooLarge Reason = "too_large"
	// ReasonInvalid: a body that cannot be parsed, or has what it may not have.
	ReasonInvalid Reason = "invalid"
)

// Error is a failed request.
type Error struct {
	// Reason is the kind of failure.
	Reason Reason
	// Err is the cause, for the operator: it may contain addresses.
	Err error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// reasonOf returns the reason of an error of this package, else ReasonUnreachable. A nil error has
// none.
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

// Get sends a question by do, which sends a request to one backend.
func Get(ctx context.Context, do Do, q Question) (Answer, error) {
	limit := cmp.Or(q.Limit, defaultLimit)
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(q.Timeout, defaultTimeout))
	defer cancel()
	res, err := do(ctx, newRequest(ctx, q))
	if err != nil {
		return Answer{}, broken(ctx, q, err)
	}
	defer res.Body.Close()
	if res.ContentLength > limit {
		return Answer{}, tooLarge(q, limit)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case int64(len(body)) > limit:
		return Answer{}, tooLarge(q, limit)
	case err != nil:
		return Answer{}, broken(ctx, q, err)
	}
	return Answer{Status: res.StatusCode, Header: res.Header, Body: body, Path: q.Path}, nil
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
	return &Error{reason, fmt.Errorf("getting %s: %w", q.Path, brief(err))}
}

func tooLarge(q Question, limit int64) error {
	return &Error{ReasonTooLarge, fmt.Errorf("getting %s: more than %d bytes", q.Path, limit)}
}
