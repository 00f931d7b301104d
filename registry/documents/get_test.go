package documents

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry/documents/negotiate"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func TestGet(t *testing.T) {
	answer := func(body string, length int64, encoding ...string) func(context.Context, *http.Request) (*http.Response, error) {
		return func(context.Context, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, ContentLength: length, Header: http.Header{"Content-Encoding": encoding}, Body: io.NopCloser(strings.NewReader(body))}, nil
		}
	}
	hang := func(ctx context.Context, _ *http.Request) (*http.Response, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	tests := []struct {
		name string
		do   func(context.Context, *http.Request) (*http.Response, error)
		want Reason
	}{
		{"answer", answer("1234", 4), ""},
		{"long ETag", func(context.Context, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Etag": {strings.Repeat("e", 2<<10)}}, Body: http.NoBody}, nil
		}, ""},
		{"too long", answer("12345", -1), ReasonTooLarge},
		{"compresses unasked", answer(string(negotiate.Gzip([]byte("1234"))), -1, "gzip"), ""},
		{"compresses too much", answer(string(negotiate.Gzip([]byte("12345"))), -1, "gzip"), ReasonTooLarge},
		{"compresses nothing for ever", answer(strings.Repeat(string(negotiate.Gzip(nil)), 1000)+string(negotiate.Gzip([]byte("1234"))), -1, "gzip"), ReasonUnreachable},
		{"says so only", answer("1234", -1, "gzip"), ReasonUnreachable},
		{"announces too much", answer("", 5), ReasonTooLarge},
		{"hangs", hang, ReasonTimeout},
		{"refuses", func(context.Context, *http.Request) (*http.Response, error) { return nil, errors.New("refused") }, ReasonUnreachable},
		{"breaks off", func(context.Context, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(io.MultiReader(bytes.NewReader([]byte("1")), cutShort{}))}, nil
		}, ReasonUnreachable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opened, closed := 0, 0
				do := func(ctx context.Context, r *http.Request) (*http.Response, error) {
					res, err := tt.do(ctx, r)
					if err == nil {
						opened++
						res.Body = closing{res.Body, &closed}
					}
					return res, err
				}
				a, err := Get(t.Context(), do, Question{Path: "/apis", Limit: 4})
				check.Same(t, tt.want, reasonOf(err), "reason of %v, with %q", err, a.Body)
				check.Same(t, closed, opened, "bodies closed")
				check.Same(t, "", a.Header.Get("Etag"), "what would be kept")
			})
		})
	}
}

func TestBounded(t *testing.T) {
	levels := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for text, want := range map[string]bool{
		"":                   true,
		`{"a":{}}`:           true,
		`{"a":{},"b":{}}`:    false,
		`[1,2,3]`:            true,
		`[1,2,3,4]`:          false,
		`"{{{,,,"`:           true,
		`"\"{{{,,,"`:         true,
		`"\\",{},{},{}`:      false,
		levels(maxDepth):     true,
		levels(maxDepth + 1): false,
		"[],[],[]":           true,
	} {
		err := (Answer{Body: []byte(text)}).Bounded(2, 2)
		check.Same(t, want, err == nil, "%.50q is within the bounds: %v", text, err)
	}
}

type closing struct {
	io.Reader
	n *int
}

func (c closing) Close() error { *c.n++; return nil }

type cutShort struct{}

func (cutShort) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// collection serves lists and watches.
type collection struct {
	mu     sync.Mutex // guards the fields below
	asked  []string
	status int // code of lists
	events *io.PipeWriter
}

func (c *collection) do(_ context.Context, r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, r.URL.RawQuery+" "+strings.SplitN(r.Header.Get("Accept"), ";", 3)[1])
	if r.URL.Query().Get("watch") == "" {
		return &http.Response{StatusCode: c.status, Body: io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"7"},"items":[]}`))}, nil
	}
	from, to := io.Pipe()
	c.events = to
	context.AfterFunc(r.Context(), func() { _ = to.CloseWithError(r.Context().Err()) })
	return &http.Response{StatusCode: http.StatusOK, Body: from}, nil
}

func (c *collection) behave(status int) (asked []string, events *io.PipeWriter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status, asked, c.asked = status, c.asked, nil
	return asked, c.events
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &collection{status: http.StatusOK}
		var changes atomic.Int32
		must.Run(t, func(ctx context.Context) error {
			return Watch(ctx, c.do, "/apis/g/v1/things", func() { changes.Add(1) })
		})
		synctest.Wait()
		asked, events := c.behave(http.StatusForbidden)
		check.Same(t, []string{"limit=1 as=PartialObjectMetadataList", "watch=true&resourceVersion=7 as=PartialObjectMetadata"}, asked, "requests")
		check.Same(t, 1, changes.Swap(0), "changes at the start, one for everything before")
		time.Sleep(time.Minute)
		for range 3 {
			must.Get(io.WriteString(events, `{"type":"ADDED"}`+"\n"))(t)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		check.Same(t, 3, changes.Swap(0), "changes of three events")

		// The watch ends, and the collection is forbidden for ten minutes: retries become rarer, but never stop.
		_ = events.Close()
		time.Sleep(10 * time.Minute)
		asked, _ = c.behave(http.StatusOK)
		check.Same(t, true, len(asked) >= 15 && len(asked) <= 35 && changes.Swap(0) == 0, "asked %d times in 10 minutes", len(asked))
		time.Sleep(lastRewatch * 2)
		synctest.Wait()
		asked, _ = c.behave(http.StatusOK)
		check.Same(t, [2]int{2, 1}, [2]int{len(asked), int(changes.Swap(0))}, "requests and changes after it is allowed again: %q", asked)
	})
}

// The pause doubles with each failure in a row, up to lastRetry. A success ends the row.
func TestPauses(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: every, 1: firstRetry, 2: 2 * firstRetry, 5: 16 * firstRetry, 99: lastRetry} {
		for range 100 {
			pause, retry := every, retries(firstRetry, lastRetry)
			for range failures {
				pause = retry()
			}
			check.Within(t, want*8/10, want*12/10, around(pause), "after %d failures", failures)
		}
	}
}

// Wake wakes Run as a new table does, without a claim that something must be published.
func (s *Sources[S, L]) Wake() { latest.Wake(s.changed) }
