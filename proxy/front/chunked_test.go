package front

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A chunked body ends its connection: net/http hides whether it also had a Content-Length.
func TestChunkedBodyEndsConnection(t *testing.T) {
	s := httptest.NewServer(limitSlowClients(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })))
	t.Cleanup(s.Close)
	for _, length := range []int64{-1, 4} {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader("body")))(t)
		r.ContentLength = length
		res := must.Get(s.Client().Do(r))(t)
		_ = res.Body.Close()
		if res.Close != (length < 0) {
			t.Errorf("length %d: the connection ends: %v", length, res.Close)
		}
	}
}
