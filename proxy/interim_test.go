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

	"github.com/fairlead-proxy/fairlead/tests/must"
)

func countHints(ctx context.Context, n *int) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { *n++; return nil }})
}

// A backend that sends interim heads without end is stopped, over either protocol.
func TestInterimFlood(t *testing.T) {
	flood := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			w.WriteHeader(http.StatusEarlyHints)
		}
	}
	for _, http1 := range []bool{true, false} {
		w := newWorld(t, worldConfig{remote: flood, remoteHTTP1: http1})
		everyWay(t, func(t *testing.T, proto string) {
			r := w.as(t, "bob", "GET", remoteGV+"/widgets?timeout=5s", nil)
			n := 0
			got := w.do(t, w.httpClient(t, proto, nil), r.WithContext(countHints(r.Context(), &n)))
			if got.status != http.StatusBadGateway || n > maxInterims {
				t.Errorf("HTTP/1.1 backend %v: %d after %d interim heads: %s", http1, got.status, n, got.body)
			}
		})
	}
}

// An interim head after the end of its request is dropped, and none removes fields of the final
// head.
func TestInterimTooLate(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		ctx, end := relayInterims(r, w)
		hint := httptrace.ContextClientTrace(ctx).Got1xxResponse
		must.Do(t, hint(http.StatusEarlyHints, textproto.MIMEHeader{"Connection": {"x-a"}, "Link": {"</a>"}}))
		end()
		must.Do(t, hint(http.StatusEarlyHints, textproto.MIMEHeader{"Link": {"</late>"}}))
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

func hintThenRead(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusEarlyHints)
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Connection", "close")
}

// An HTTP/1.0 client gets no interim heads.
func TestInterimOfAnOldClient(t *testing.T) {
	for _, http1 := range []bool{true, false} {
		w := newWorld(t, worldConfig{remote: hintThenRead, remoteHTTP1: http1})
		conn := w.dial(t, w.front, nil)
		must.Get(fmt.Fprintf(conn, "GET %s/widgets HTTP/1.0\r\nAuthorization: Bearer token-of-bob\r\n\r\n", remoteGV))(t)
		if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), "HTTP/1.0 200 OK\r\n") {
			t.Errorf("HTTP/1.1 backend %v: %q, %v", http1, got, err)
		}
	}
}

// An interim head of the backend and net/http's own 100 Continue do not race: for the race
// detector.
func TestInterimBesideContinue(t *testing.T) {
	for _, http1 := range []bool{true, false} {
		w := newWorld(t, worldConfig{remote: hintThenRead, remoteHTTP1: http1})
		res, br, conn := w.raw(t, "POST "+remoteGV+"/widgets", "X-Unread: 1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
		for hinted := false; ; res = must.Get(http.ReadResponse(br, nil))(t) {
			if res.StatusCode == http.StatusOK && hinted {
				break
			}
			if res.StatusCode >= 200 {
				t.Fatalf("%d", res.StatusCode)
			}
			if res.StatusCode == http.StatusEarlyHints {
				hinted = true
				must.Get(io.WriteString(conn, "1\r\na\r\n0\r\n\r\n"))(t)
			}
		}
	}
}
