package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func countHints(ctx context.Context, n *int) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { *n++; return nil }})
}

// A backend that sends interim heads without end is stopped, over either protocol.
func TestInterimFlood(t *testing.T) {
	bothBackends(t, worldConfig{remote: func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			w.WriteHeader(http.StatusEarlyHints)
		}
	}}, func(t *testing.T, w *world) {
		everyWay(t, func(t *testing.T, proto string) {
			r, n := w.as(t, "bob", "GET", remoteGV+"/widgets?timeout=5s", nil), 0
			got := w.do(t, w.httpClient(t, proto, nil), r.WithContext(countHints(r.Context(), &n)))
			if got.status != http.StatusBadGateway || n > maxInterims {
				t.Errorf("%d after %d interim heads: %s", got.status, n, got.body)
			}
		})
	})
}

// An interim head after the end of its request is dropped, and none removes fields of the final head.
func TestInterimTooLate(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		interims := interimsOf(r, w, &Decision{})
		must.Do(t, interims.relay(http.StatusEarlyHints, textproto.MIMEHeader{"Connection": {"x-a"}, "Link": {"</a>"}}))
		interims.end()
		must.Do(t, interims.relay(http.StatusEarlyHints, textproto.MIMEHeader{"Link": {"</late>"}}))
	}))
	t.Cleanup(s.Close)
	n := 0
	r := must.Get(http.NewRequestWithContext(countHints(t.Context(), &n), http.MethodGet, s.URL, nil))(t)
	res := must.Get(s.Client().Do(r))(t)
	defer res.Body.Close()
	if n != 1 || !res.Close || res.Header.Get("Link") != "" {
		t.Errorf("%d interim heads, then %v; the connection ends: %v", n, res.Header, res.Close)
	}
}

// An HTTP/1.0 client gets no interim heads, nor does one to which net/http writes 100 Continue: for the race detector.
func TestInterimsOfHTTP1(t *testing.T) {
	bothBackends(t, worldConfig{remote: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Connection", "close")
	}}, func(t *testing.T, w *world) {
		old := w.dial(t, w.front, nil)
		must.Get(fmt.Fprintf(old, "GET %s/widgets HTTP/1.0\r\nAuthorization: Bearer token-of-bob\r\n\r\n", remoteGV))(t)
		if got, err := io.ReadAll(old); err != nil || !strings.HasPrefix(string(got), "HTTP/1.0 200 OK\r\n") {
			t.Errorf("HTTP/1.0: %q, %v", got, err)
		}
		res, br, conn := w.raw(t, "POST "+remoteGV+"/widgets", "X-Unread: 1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
		check.Same(t, http.StatusContinue, res.StatusCode, "first status")
		must.Get(io.WriteString(conn, "1\r\na\r\n0\r\n\r\n"))(t)
		check.Same(t, http.StatusOK, must.Get(http.ReadResponse(br, nil))(t).StatusCode, "second status")
	})
}
