package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// TestGuardServesWhatItAuthorizes: however a request line is written, the page is the one that was
// authorized.
func TestGuardServesWhatItAuthorizes(t *testing.T) {
	w := newWorld(t, worldConfig{})
	guarded := w.guard(t, w.proxy, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(rw, "%s %s", exchangeOf(r.Context()).decision.Request.Path, r.URL.Path)
	})
	for _, target := range []string{"/debug/pprof/heap", "http:/debug/pprof/heap", "http://x/debug/pprof/heap", "/debug%2fpprof/heap", "//debug/pprof", "x:y?z", "http://x?/debug"} {
		conn := w.dial(t, guarded, w.client.Issue(pki.Leaf{CommonName: "alice"}))
		must.Get(fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", target))(t)
		raw := must.Get(io.ReadAll(conn))(t)
		_, body, _ := strings.Cut(string(raw), "\r\n\r\n")
		authorized, served, ok := strings.Cut(body, " ")
		if strings.HasPrefix(string(raw), "HTTP/1.1 200") && (!ok || authorized != served) {
			t.Errorf("%s: authorized for %q, served %q", target, authorized, served)
		}
	}
}
