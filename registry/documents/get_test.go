package documents

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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
		if err := (Answer{Body: []byte(text)}).Bounded(2, 2); (err == nil) != want {
			t.Errorf("%.50q: %v", text, err)
		}
	}
}

type closing struct {
	io.Reader
	n *int
}

func (c closing) Close() error { *c.n++; return nil }

type cutShort struct{}

func (cutShort) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
