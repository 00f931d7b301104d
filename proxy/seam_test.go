package proxy

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
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

// withheld are fields that a remote may not set: those of its connection, and those that let pages
// of other origins read the cluster's API.
func withheld(more ...string) []string {
	return append([]string{"Access-Control-Allow-Credentials", "Access-Control-Allow-Headers", "Access-Control-Allow-Methods", "Access-Control-Allow-Origin", "Proxy-Authenticate", "Http2-Settings", "Te"}, more...)
}

// Fields that a remote may not set are removed from its interim heads, its final head and its
// trailers, announced or not.
func TestAnswersAreCleaned(t *testing.T) {
	names := withheld()
	bothBackends(t, worldConfig{remote: func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		set := func(prefix, value string) {
			for _, name := range append(names, "X-Kept") {
				h.Set(prefix+name, value)
			}
		}
		set("", "interim")
		w.WriteHeader(http.StatusEarlyHints)
		set("", "final")
		h.Set("X-Said", "final")
		h.Set("Trailer", "X-Said, Access-Control-Allow-Methods")
		_, _ = io.WriteString(w, "body")
		w.(http.Flusher).Flush()
		set("", "trailer")
		set(http.TrailerPrefix, "trailer")
		h.Set("X-Said", "trailer")
	}}, func(t *testing.T, w *world) {
		everyWay(t, func(t *testing.T, proto string) {
			r := w.as(t, "bob", "GET", remoteGV+"/widgets", nil)
			heads := map[string]http.Header{}
			r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, h textproto.MIMEHeader) error { heads[fmt.Sprint(code)] = http.Header(h); return nil },
			}))
			res := must.Get(w.httpClient(t, proto, nil).Do(r))(t)
			defer res.Body.Close()
			if body, err := io.ReadAll(res.Body); err != nil || string(body) != "body" {
				t.Fatalf("%q, %v", body, err)
			}
			heads["final"], heads["trailer"] = res.Header, res.Trailer
			for _, place := range []string{"103", "final", "trailer"} {
				h := heads[place]
				if h.Get("X-Kept") == "" || slices.ContainsFunc(names, func(name string) bool { return h.Values(name) != nil }) {
					t.Errorf("%s: %v", place, h)
				}
			}
			check.Same(t, []string{"trailer"}, res.Trailer.Values("X-Said"), "the announced trailer")
		})
	})
}

// The same holds for a backend that accepts an upgrade, and for one that refuses it.
func TestUpgradeAnswersAreCleaned(t *testing.T) {
	for status, text := range map[int]string{101: "Connection: Upgrade, X-Listed\r\nUpgrade: websocket\r\n", 400: "Connection: X-Listed\r\nContent-Length: 0\r\n", 403: "Connection: X-Listed\r\nKeep-Alive: x\r\nContent-Length: 0\r\n"} {
		names := withheld("X-Listed", "Keep-Alive")
		w := newWorld(t, worldConfig{remote: hijacked(func(c io.ReadWriter, _ *http.Request) {
			fmt.Fprintf(c, "HTTP/1.1 %d It is\r\nX-Kept: yes\r\n%s", status, text)
			for _, name := range names {
				fmt.Fprintf(c, "%s: x\r\n", name)
			}
			fmt.Fprint(c, "\r\n")
		})})
		res, _, _ := w.raw(t, "GET "+remoteGV+"/x", websocket)
		if res.StatusCode != status || res.Header.Get("X-Kept") != "yes" || slices.ContainsFunc(names, func(name string) bool { return res.Header.Values(name) != nil }) {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
		if c := res.Header.Values("Connection"); status == 101 && !slices.Equal(c, []string{"Upgrade"}) {
			t.Errorf("Connection %q", c)
		}
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

// An extension server that answers an upgrade with a redirect sends kubectl, with its credentials,
// anywhere. Of the answers to an upgrade only 101 and errors reach the client, even if redirects of
// other requests are forwarded.
func TestUpgradeRedirectCVE20208559(t *testing.T) {
	w := newWorld(t, worldConfig{forwardRedirects: true, remote: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "https://evil.example.com/")
		w.WriteHeader(must.Get(strconv.Atoi(r.URL.RawQuery))(t))
	}})
	for _, status := range []int{200, 204, 300, 301, 302, 303, 304, 307, 308} {
		res, _, _ := w.raw(t, fmt.Sprint("GET ", remoteGV, "/namespaces/a/pods/b/exec?", status), "Connection: upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		if res.StatusCode != http.StatusBadGateway || res.Header.Get("Location") != "" {
			t.Errorf("%d: forwarded as %d to %q", status, res.StatusCode, res.Header.Get("Location"))
		}
	}
}

// Of the 3xx, those that lead a client to another place are rejected, unless the operator wants
// them. 304 leads nowhere, 306 has no meaning.
func TestRejectedStatuses(t *testing.T) {
	redirects := []int{300, 301, 302, 303, 305, 307, 308}
	for status := 100; status < 600; status++ {
		check.Same(t, slices.Contains(redirects, status), (&Proxy{}).rejects(status), "%d is rejected", status)
		check.Same(t, false, (&Proxy{cfg: Config{ForwardRedirects: true}}).rejects(status), "%d is rejected with ForwardRedirects", status)
	}
}

// No trailer of a request states identity or the body's length, and no unannounced one reaches a
// backend: after one announced trailer, net/http puts every HTTP/1.1 trailer into its map.
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
					maps.DeleteFunc(in.trailer, func(_ string, values []string) bool { return values == nil }) // announced, and never sent
					check.Same(t, http.Header{"X-Checksum": {"abc"}}, in.trailer, "%s: trailers %s", side.path, way)
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

// A token is read from a request only if the request is forwarded as an upgrade. Otherwise the
// answer to a request without the token would prove it.
func TestUpgradeInNameOnly(t *testing.T) {
	w := newWorld(t, worldConfig{})
	const token = "base64url.bearer.authorization.k8s.io.dG9rZW4tbm9ib2R5LWtub3dz" // token-nobody-knows
	for _, fields := range []string{"Connection: keep-alive, x-upgrade\r\nUpgrade: websocket\r\n", "Connection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: websocket\r\n"} {
		for _, target := range []string{"/api/v1/pods", remoteGV + "/widgets"} {
			res, _, _ := w.say(t, nil, "GET "+target+" HTTP/1.1\r\nHost: x\r\n"+fields+"Sec-WebSocket-Protocol: v5.channel.k8s.io, "+token+"\r\n\r\n")
			check.Same(t, map[bool]int{true: 200, false: 401}[target == "/api/v1/pods"], res.StatusCode, "%q %s", fields, target)
			if in := w.local.last(t).header; in.Get("Sec-Websocket-Protocol") != "" || in.Get("Upgrade") != "" || in.Get("Connection") != "" || in.Get("Http2-Settings") != "" {
				t.Errorf("%q: arrived with %v", fields, in)
			}
		}
		check.Same(t, 0, w.remote.count(), "%q: requests of an unknown caller at the remote", fields)
		h := &Head{Method: "GET", Path: "/api/v1/pods", Fields: authn.Head{{Name: "authorization", Value: "Bearer token-nobody-knows"}}}
		if d, _ := w.proxy.decision(t.Context(), h, nil, true); d.Pool != authn.PoolUnproven {
			t.Fatalf("%q: an unknown token uses pool %d", fields, d.Pool)
		}
	}
}

// A remote gets its own address as the host, as from kube-aggregator, over any protocol: otherwise
// a client could choose the virtual host of an ingress. The local apiserver gets the client's host,
// as in a direct request: it forwards it to pods and services.
func TestHostOfBackends(t *testing.T) {
	bothBackends(t, worldConfig{remote: switchingIfAsked, local: switchingIfAsked}, func(t *testing.T, w *world) {
		for _, side := range []struct {
			far        *far
			path, want string
		}{{w.remote, remoteGV + "/widgets", w.remote.Listener.Addr().String()}, {w.local, "/api/v1/pods", "front.example.com"}} {
			everyWay(t, func(t *testing.T, proto string) {
				r := must.Get(http.NewRequestWithContext(t.Context(), "GET", w.front.URL+side.path, nil))(t)
				r.Host = "front.example.com"
				r.Header.Set("Authorization", "Bearer token-of-bob")
				w.do(t, w.httpClient(t, proto, nil), r).want(t, 200)
				in := side.far.last(t).header
				if in.Get("Host") != side.want || in.Get("X-Forwarded-Host") != "front.example.com" {
					t.Errorf("%s: host %q for %q", side.path, in.Get("Host"), in.Get("X-Forwarded-Host"))
				}
			})
			w.raw(t, "GET "+side.path, websocket)
			if in := side.far.last(t).header; in.Get("Host") != side.want {
				t.Errorf("%s, upgraded: host %q", side.path, in.Get("Host"))
			}
		}
	})
}

func switchingIfAsked(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "" {
		switching(w, r)
	}
}

// uuid4 matches a UUID of version 4 (RFC 9562 §5.4).
var uuid4 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// Answers of a backend keep their fields, once each.
func TestForwardedAnswers(t *testing.T) {
	w := newWorld(t, worldConfig{remote: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Audit-Id", r.Header.Get("Audit-Id"))
		w.Header().Set("Cache-Control", "public")
	}})
	everyWay(t, func(t *testing.T, proto string) {
		for _, user := range []string{"", "jane"} {
			r := w.as(t, "boss", "GET", remoteGV+"/widgets", nil)
			if user != "" {
				r.Header.Set("Impersonate-User", user)
			}
			got := w.do(t, w.httpClient(t, proto, nil), r)
			if ids := got.header.Values("Audit-Id"); got.status != 200 || len(ids) != 1 || ids[0] == "" || !slices.Equal(got.header.Values("Cache-Control"), []string{"public"}) {
				t.Errorf("as %q: %d %v", user, got.status, got.header)
			}
		}
	})
}
