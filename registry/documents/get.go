package documents

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/printable"
)

// Question is one GET.
type Question struct {
	Path    string        // the unescaped path to get
	Query   string        // its query, without a question mark, or empty
	Accept  string        // the Accept field
	OK      bool          // makes every status an error but 200 and, to a conditional request, 304
	ETag    string        // makes the request conditional (If-None-Match). Empty means that it is not
	Limit   int64         // bounds the body. Zero means 8 MiB: a thousand custom resources make one
	Timeout time.Duration // from dialling to the last byte. Zero means 5 s, kube-apiserver's for discovery
	// Turn, if not nil, has one slot. It is taken before a body is read beyond 8 MiB, for 30 s, and
	// until Answer.Done: one large document is read and decoded at a time.
	Turn chan struct{}
}

// Answer is a response. Its body has been read to its end, so that the connection can be used again.
type Answer struct {
	Status int         // the HTTP status
	Header http.Header // the response's fields
	Body   []byte      // all of it
	Path   string      // that of the request

	turn chan struct{} // to be released. Nil means none
}

// Done says that the answer has been used. It may be called twice.
func (a *Answer) Done() {
	if a.turn != nil {
		<-a.turn
		a.turn = nil
	}
}

// Unexpected returns the error for an unexpected status.
func (a *Answer) Unexpected() error {
	return &Error{ReasonStatus, fmt.Errorf("getting %s: %d %s", a.Path, a.Status, http.StatusText(a.Status))}
}

// Invalid returns the error for a response that cannot be parsed.
func (a Answer) Invalid(err error) error {
	return &Error{ReasonInvalid, fmt.Errorf("reading %s: %w", a.Path, brief(err))}
}

// maxText bounds the text of an error, which quotes what a backend sends, and an ETag: both are kept.
const maxText = 1 << 10

func brief(err error) error {
	if text := err.Error(); len(text) > maxText {
		return errors.New(printable.Cut(text, maxText))
	}
	return err
}

// maxDepth bounds how deep objects and lists are nested. Kubernetes' own have 9 levels, CRDs with a Pod's schema 50.
const maxDepth = 200

// Bounded returns an error if the body, as JSON, has more objects or values than that, or more than maxDepth levels:
// decoded, an object of two bytes may take hundreds, and some libraries the square of the depth. It need not be valid.
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
		return fmt.Errorf("decoding: %d objects, %d values and %d levels, at most %d, %d and %d",
			objectsFound, valuesFound, deepest, objects, values, maxDepth)
	}
	return nil
}

// Reason is why there is no response, in one word from a fixed set: it labels metrics.
type Reason string

// The reasons.
const (
	ReasonUnreachable Reason = "unreachable" // no connection, or it ended
	ReasonTimeout     Reason = "timeout"     // no complete response in time
	ReasonStatus      Reason = "status"      // an unexpected HTTP status
	ReasonTooLarge    Reason = "too_large"   // more than the limit
	ReasonInvalid     Reason = "invalid"     // a body that cannot be parsed, or has what it may not have
)

// Error is a failed request.
type Error struct {
	Reason Reason // the kind of failure
	Err    error  // the cause, for the operator: it may contain addresses
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// reasonOf returns the reason of an error of this package, else ReasonUnreachable. A nil error has none.
func reasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ReasonUnreachable
}

const (
	defaultLimit   = 8 << 20
	defaultTimeout = 5 * time.Second
	turnTime       = 30 * time.Second // of a large body: 64 MiB at 20 Mbit/s
)

// Get sends a question by do, which sends a request to one backend. With a Turn the caller calls Done of the answer.
func Get(ctx context.Context, do Do, q Question) (Answer, error) {
	limit := cmp.Or(q.Limit, defaultLimit)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(cmp.Or(q.Timeout, defaultTimeout), func() { cancel(context.DeadlineExceeded) })
	defer timer.Stop()
	res, err := do(ctx, newRequest(ctx, q))
	if err != nil {
		return Answer{}, broken(ctx, q, err)
	}
	defer res.Body.Close()
	a := Answer{Status: res.StatusCode, Header: res.Header, Path: q.Path}
	if len(res.Header.Get("Etag")) > maxText {
		res.Header.Del("Etag")
	}
	if res.ContentLength > limit {
		return a, tooLarge(q, res.ContentLength, limit)
	}
	body := io.Reader(res.Body)
	if res.Header.Get("Content-Encoding") == "gzip" { // though it was not asked for: some servers always compress
		z := new(gzip.Reader)
		_ = z.Reset(io.LimitReader(res.Body, limit+1<<10)) // Read returns its error, too. Empty members have no end
		body = z
	}
	first := limit
	if q.Turn != nil {
		first = min(limit, defaultLimit)
	}
	a.Body, err = io.ReadAll(io.LimitReader(body, first+1))
	if err == nil && int64(len(a.Body)) > first && first < limit {
		select {
		case q.Turn <- struct{}{}:
			a.turn = q.Turn
			timer.Reset(turnTime)
			room := min(max(res.ContentLength, 2*first), limit) + bytes.MinRead
			b := bytes.NewBuffer(append(make([]byte, 0, room), a.Body...))
			_, err = b.ReadFrom(io.LimitReader(body, limit+1-int64(b.Len())))
			a.Body = b.Bytes()
		case <-ctx.Done():
			err = fmt.Errorf("waiting for another large document: %w", context.Cause(ctx))
		}
	}
	switch {
	case int64(len(a.Body)) > limit:
		err = tooLarge(q, int64(len(a.Body)), limit)
	case err != nil:
		err = broken(ctx, q, err)
	case q.OK && a.Status != http.StatusOK && (a.Status != http.StatusNotModified || q.ETag == ""):
		err = a.Unexpected()
	default:
		return a, nil
	}
	a.Done()
	return Answer{}, err
}

func newRequest(ctx context.Context, q Question) *http.Request {
	req := (&http.Request{
		Method: http.MethodGet, URL: &url.URL{Scheme: "https", Path: q.Path, RawQuery: q.Query},
		Header: make(http.Header, 4), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	req.Header.Set("Accept", q.Accept)
	if q.ETag != "" {
		req.Header.Set("If-None-Match", q.ETag)
	}
	return req
}

func broken(ctx context.Context, q Question, err error) error {
	reason := ReasonUnreachable
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		reason = ReasonTimeout
	}
	return &Error{reason, fmt.Errorf("getting %s: %w", q.Path, brief(err))}
}

func tooLarge(q Question, size, limit int64) error {
	return &Error{ReasonTooLarge, fmt.Errorf("getting %s: %d bytes or more, at most %d", q.Path, size, limit)}
}
