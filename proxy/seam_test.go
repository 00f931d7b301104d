package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
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
				for _, name := range names {
					if v := h.Values(name); v != nil {
						t.Errorf("%s: %s: %q", place, name, v)
					}
				}
				if h.Get("X-Kept") == "" {
					t.Errorf("%s: X-Kept is missing: %v", place, h)
				}
			}
			if trailer := res.Trailer.Values("X-Said"); !slices.Equal(trailer, []string{"trailer"}) {
				t.Errorf("the announced trailer is %q", trailer)
			}
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
		if res.StatusCode != status || res.Header.Get("X-Kept") != "yes" {
			t.Fatalf("%d %v", res.StatusCode, res.Header)
		}
		for _, name := range names {
			if v := res.Header.Values(name); v != nil {
				t.Errorf("%d: %s: %q", status, name, v)
			}
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
	for _, forward := range []bool{false, true} {
		for _, status := range []int{200, 204, 300, 301, 302, 303, 304, 307, 308} {
			w := newWorld(t, worldConfig{forwardRedirects: forward, remote: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "https://evil.example.com/")
				w.WriteHeader(status)
			}})
			res, _, _ := w.raw(t, "GET "+remoteGV+"/namespaces/a/pods/b/exec", "Connection: upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
			if res.StatusCode != http.StatusBadGateway || res.Header.Get("Location") != "" {
				t.Errorf("%d: forwarded as %d to %q", status, res.StatusCode, res.Header.Get("Location"))
			}
		}
	}
}

// Of the 3xx, those that lead a client to another place are rejected. 304 leads nowhere, 306 has no
// meaning.
func TestRejectedStatuses(t *testing.T) {
	redirects := []int{300, 301, 302, 303, 305, 307, 308}
	for status := 100; status < 600; status++ {
		check.Same(t, slices.Contains(redirects, status), (&Proxy{}).rejects(status), "%d is rejected", status)
	}
}

// After one announced trailer, net/http puts every HTTP/1.1 trailer into its map. No unannounced
// trailer reaches a backend, and none that states identity or the body's length.
func TestUnannouncedTrailersDoNothing(t *testing.T) {
	bothBackends(t, worldConfig{}, func(t *testing.T, w *world) {
		for _, target := range []string{remoteGV + "/widgets", "/api/v1/pods"} {
			res, _, _ := w.raw(t, "POST "+target, "Connection: X-Listed, close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Checksum, X-Listed, Authorization, Impersonate-User\r\n\r\n4\r\nbody\r\n0\r\nX-Checksum: abc\r\nX-Listed: x\r\n"+
				"X-Remote-User: system:admin\r\nX_remote_group: system:masters\r\nAuthorization: Bearer x\r\nImpersonate-User: root\r\nContent-Length: 9\r\nX-Other: x\r\n\r\n")
			far := w.remote
			if target == "/api/v1/pods" {
				far = w.local
			}
			if res.StatusCode != 200 {
				t.Fatalf("%s: status %d", target, res.StatusCode)
			}
			in := far.last(t)
			if diff := cmp.Diff(http.Header{"X-Checksum": {"abc"}}, in.trailer); diff != "" || in.body != "body" {
				t.Errorf("%s: body %q, trailers (-want +got):\n%s", target, in.body, diff)
			}
		}
	})
}

// A token is read from a request only if the request is forwarded as an upgrade. Otherwise the
// answer to a request without the token would prove it.
func TestUpgradeInNameOnly(t *testing.T) {
	w := newWorld(t, worldConfig{})
	const token = "base64url.bearer.authorization.k8s.io.dG9rZW4tbm9ib2R5LWtub3dz" // token-nobody-knows
	for _, fields := range []string{
		"Connection: x-upgrade\r\nUpgrade: websocket\r\n", "Connection: keep-alive, x-upgrade\r\nUpgrade: websocket\r\n", "Upgrade: websocket\r\n", "Connection: upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n",
	} {
		for _, target := range []string{"/api/v1/pods", remoteGV + "/widgets"} {
			res, _, _ := w.say(t, nil, "GET "+target+" HTTP/1.1\r\nHost: x\r\n"+fields+"Sec-WebSocket-Protocol: v5.channel.k8s.io, "+token+"\r\n\r\n")
			check.Same(t, map[bool]int{true: 200, false: 401}[target == "/api/v1/pods"], res.StatusCode, "%q %s", fields, target)
			if in := w.local.last(t).header; in.Get("Sec-Websocket-Protocol") != "" || in.Get("Upgrade") != "" || in.Get("Connection") != "" {
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

// A long-running request without a token, whatever its Authorization, needs no review and stays off
// the connections of proven tokens.
func TestOnlyTokensAreProven(t *testing.T) {
	w := newWorld(t, worldConfig{})
	for authorization, proto := range map[string]string{"Basic x": "HTTP/1.1", "Bearer": "HTTP/1.1", "Bearer  token-of-bob": "HTTP/1.1", "Bearer token-of-bob": "HTTP/2.0"} {
		everyWay(t, func(t *testing.T, by string) {
			w := w
			if proto == "HTTP/2.0" {
				w = newWorld(t, worldConfig{}) // where the token is not proven yet
			}
			before := w.local.count()
			w.do(t, w.httpClient(t, by, nil), w.by(t, authorization, "GET", "/api/v1/pods?watch=true", nil)).want(t, 200, authorization)
			in, asked := w.local.last(t), w.local.count()-before > 1
			if asked != (proto == "HTTP/2.0") || in.proto != proto {
				t.Errorf("%q: reviewed: %v; the watch went over %s", authorization, asked, in.proto)
			}
		})
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

// Fairlead's own answers have the fields of every answer of kube-apiserver, for every caller.
func TestOwnAnswers(t *testing.T) {
	w := newWorld(t, worldConfig{unhealthy: true, documents: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotAcceptable) })})
	everyWay(t, func(t *testing.T, proto string) {
		for _, tc := range []struct {
			name, target, token string
			status              int
		}{
			{"401", remoteGV, "nobody", 401}, {"403", remoteGV, "token-of-nobody", 403}, {"503", remoteGV, "token-of-bob", 503}, {"400", remoteGV + "/%2e%2e", "token-of-bob", 400},
			{"document", "/apis", "token-of-bob", 406}, {"page", "/fairlead/none", "token-of-bob", 404}, {"impersonation", remoteGV, "token-of-bob", 403},
		} {
			for _, id := range []string{"", "the-client-s-own", strings.Repeat("long", 100)} {
				r := w.request(t, "GET", tc.target, nil)
				r.Header = http.Header{"Authorization": {"Bearer " + tc.token}}
				if tc.name == "impersonation" {
					r.Header.Set("Impersonate-User", "jane")
				}
				if id != "" {
					r.Header.Set("Audit-Id", id)
				}
				got := w.do(t, w.httpClient(t, proto, nil), r)
				got.want(t, tc.status, tc.name)
				ids := got.header.Values("Audit-Id")
				if len(ids) != 1 || len(ids[0]) > 64 || len(id) < 64 && id != "" && ids[0] != id || id == "" && !uuid4.MatchString(ids[0]) {
					t.Errorf("%s with %.20q: Audit-Id %.100q", tc.name, id, ids)
				}
				if c := got.header.Values("Cache-Control"); !slices.Equal(c, []string{"no-cache, private"}) {
					t.Errorf("%s: Cache-Control %q", tc.name, c)
				}
				if got.status == 403 && got.header.Get("X-Content-Type-Options") != "nosniff" {
					t.Errorf("%s: no X-Content-Type-Options: nosniff", tc.name)
				}
			}
		}
	})
}

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
