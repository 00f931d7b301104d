package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// TestReadyDocument: a document that is ready is sent to whom the cluster lets have it, counted and
// logged like any other answer.
func TestReadyDocument(t *testing.T) {
	access, seen := newLog(t)
	ready := &h2.Answer{Status: 200, Body: []byte("ready"), Fields: []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: "content-length", Value: "5"}}}
	w := newWorld(t, worldConfig{
		access:    access,
		documents: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "asked") }),
		ready: func(h *Head) *h2.Answer {
			if h.get("accept") == "fresh" {
				return nil
			}
			return ready
		},
	})
	everyWay(t, func(t *testing.T, proto string) {
		for _, tc := range []struct {
			method, token, accept string
			status                int
			body                  string // over HTTP/2
		}{
			{"GET", "token-of-bob", "", 200, "ready"},
			{"GET", "token-of-bob", "fresh", 200, "asked"},
			{"POST", "token-of-bob", "", 200, "asked"},
			{"HEAD", "token-of-bob", "", 200, ""},
			{"GET", "token-of-nobody", "", 403, ""},
			{"GET", "", "", 401, ""},
		} {
			r := w.request(t, tc.method, "/apis?timeout=32s", nil)
			r.Header.Set("Accept", tc.accept)
			if tc.token != "" {
				r.Header.Set("Authorization", "Bearer "+tc.token)
			}
			got := w.do(t, w.httpClient(t, proto, nil), r)
			if tc.body == "ready" && proto != "h2" {
				tc.body = "asked"
			}
			if got.status != tc.status || tc.status == 200 && got.body != tc.body {
				t.Errorf("%+v: %d %q", tc, got.status, got.body)
			}
			var line map[string]any
			must.Do(t, json.Unmarshal([]byte(<-seen), &line))
			want := map[string]any{"status": float64(tc.status), "path": "/apis", "bytes": float64(len(tc.body))}
			if tc.status != 200 || tc.method == "HEAD" {
				delete(want, "bytes")
			}
			for key := range line {
				if _, ok := want[key]; !ok {
					delete(line, key)
				}
			}
			if diff := cmp.Diff(want, line); diff != "" {
				t.Errorf("%+v: access log %s", tc, diff)
			}
		}
	})
}
