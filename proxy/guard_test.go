package proxy

import (
	"crypto/tls"
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
	guarded := w.server()
	guarded.Config.Handler = w.proxy.Guard(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		x := exchangeOf(r.Context())
		_, _ = fmt.Fprintf(rw, "%s %s", x.decision.Request.Path, r.URL.Path)
	}))
	guarded.StartTLS()
	t.Cleanup(guarded.Close)
	for _, target := range []string{"/debug/pprof/heap", "http:/debug/pprof/heap", "http://x/debug/pprof/heap", "/debug%2fpprof/heap", "//debug/pprof", "x:y?z", "http://x?/debug"} {
		conn := must.Get(tls.Dial("tcp", guarded.Listener.Addr().String(), &tls.Config{
			RootCAs: w.serving.Pool(), ServerName: "127.0.0.1", NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{w.authorities.client.Issue(pki.Leaf{CommonName: "alice"}).TLS()},
		}))(t)
		must.Get(fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", target))(t)
		raw := must.Get(io.ReadAll(conn))(t)
		conn.Close()
		_, body, _ := strings.Cut(string(raw), "\r\n\r\n")
		authorized, served, ok := strings.Cut(body, " ")
		if strings.HasPrefix(string(raw), "HTTP/1.1 200") && (!ok || authorized != served) {
			t.Errorf("%s: authorized for %q, served %q", target, authorized, served)
		}
	}
}
