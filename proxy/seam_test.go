package proxy

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// bothBackends runs a test with a remote that speaks HTTP/2 and with one that does not.
func bothBackends(t *testing.T, c worldConfig, f func(t *testing.T, w *world)) {
	for name, http1 := range map[string]bool{"to h2": false, "to http/1.1": true} {
		t.Run(name, func(t *testing.T) {
			c.remoteHTTP1 = http1
			f(t, newWorld(t, c))
		})
	}
}

// hijacked answers with bytes of its own, and closes the connection.
func hijacked(f func(io.ReadWriter, *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		f(struct {
			io.Reader // has buffered bytes
			io.Writer
		}{rw, conn}, r)
	}
}

// The 3xx that lead a client to another place are rejected, unless the operator wants them.
func TestRejectedStatuses(t *testing.T) {
	for status := 100; status < 600; status++ {
		check.Same(t, status >= 300 && status < 400, (&Proxy{}).rejects(status, true), "%d is rejected", status)
		check.Same(t, false, (&Proxy{}).rejects(status, false), "%d that leads nowhere is rejected", status)
		check.Same(t, false, (&Proxy{cfg: Config{ForwardRedirects: true}}).rejects(status, true), "%d is rejected with ForwardRedirects", status)
	}
}

// No trailer of a request reaches a backend, by either protocol: none that states an identity or a
// length, and none that breaks a connection that others share.
func TestTrailersDoNothing(t *testing.T) {
	for _, impersonate := range []bool{false, true} {
		bothBackends(t, worldConfig{impersonate: impersonate}, func(t *testing.T, w *world) {
			for _, side := range []struct {
				far  *far
				path string
			}{{w.remote, remoteGV + "/widgets"}, {w.local, "/api/v1/pods"}} {
				arrived := func(way string) {
					t.Helper()
					in := side.far.last(t)
					check.Same(t, http.Header(nil), in.trailer, "%s: trailers %s", side.path, way)
					check.Same(t, "body", in.body, "%s: body %s", side.path, way)
				}
				everyWay(t, func(t *testing.T, proto string) {
					r := w.request(t, "POST", side.path, io.NopCloser(strings.NewReader("body")))
					r.ContentLength = -1
					r.Trailer = http.Header{"X-Checksum": {"abc"}}
					for _, name := range []string{"X-Remote-User", "X_remote-Group", "Authorization", "Impersonate-User", "Impersonate-Group"} {
						r.Trailer[name] = []string{"root"}
					}
					w.do(t, w.httpClient(t, proto, w.client.Issue(pki.Leaf{CommonName: "alice"})), r).want(t, 200)
					arrived("over " + proto)
				})
				res, _, _ := w.raw(t, "POST "+side.path, "Connection: X-Listed, close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Checksum, X-Listed, Authorization, Impersonate-User\r\n\r\n4\r\nbody\r\n0\r\nX-Checksum: abc\r\nX-Listed: x\r\n"+
					"X-Remote-User: system:admin\r\nX_remote_group: system:masters\r\nAuthorization: Bearer x\r\nImpersonate-User: root\r\nContent-Length: 9\r\nX-Other: x\r\n\r\n")
				check.Same(t, 200, res.StatusCode, "%s: status", side.path)
				arrived("unannounced")
			}
		})
	}
}

// uuid4 matches a UUID of version 4 (RFC 9562 §5.4).
var uuid4 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
