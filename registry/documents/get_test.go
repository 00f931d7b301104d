package documents

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
)

func TestGet(t *testing.T) {
	answer := func(body string, length int64) func(context.Context, *http.Request) (*http.Response, error) {
		return func(context.Context, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, ContentLength: length, Body: io.NopCloser(strings.NewReader(body))}, nil
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
		{"too long", answer("12345", -1), ReasonTooLarge},
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
				a, err := Get(t.Context(), tt.do, Question{Path: "/apis", Limit: 4})
				if reasonOf(err) != tt.want {
					t.Errorf("got %q (%v), %q", reasonOf(err), err, a.Body)
				}
			})
		})
	}
}

// A body of any length comes out as it went in, whatever is announced, and nothing beyond the limit is put together.
func TestReadAll(t *testing.T) {
	const limit = 5*mostChunk + 3
	text := bytes.Repeat([]byte("0123456789abcdef-"), limit/17+1)
	for _, n := range []int{0, 1, leastChunk - 1, leastChunk, leastChunk + 1, mostChunk, 3*mostChunk + 1, limit, limit + 1} {
		for _, announced := range []int64{-1, 0, int64(n), 1 << 40} {
			got, err := readAll(iotest.HalfReader(bytes.NewReader(text[:n])), announced, limit)
			if n > limit {
				if !errors.Is(err, errTooLong) || got != nil {
					t.Errorf("%d bytes: %d came out, %v", n, len(got), err)
				}
				continue
			}
			if err != nil || !bytes.Equal(got, text[:n]) {
				t.Errorf("%d bytes, %d announced: %d came out, %v", n, announced, len(got), err)
			}
		}
	}
	before := allocated()
	if _, err := readAll(endless{}, -1, 32<<20); !errors.Is(err, errTooLong) {
		t.Errorf("a body without end: %v", err)
	}
	if n := (allocated() - before) >> 20; n > 34 {
		t.Errorf("%d MiB were taken for 32 MiB", n)
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

type cutShort struct{}

func (cutShort) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
