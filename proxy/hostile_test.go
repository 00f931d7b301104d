package proxy

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func TestForgedHeadersDoNothing(t *testing.T) {
	w := newWorld(t, worldConfig{})
	forged := http.Header{
		"X-Remote-User": {"system:admin"}, "x-remote-group": {"system:masters"}, "X_Remote_User": {"system:admin"}, "X-Remote_Group": {"system:masters"},
		"X-Remote-Extra-Scopes": {"all"}, "X-REMOTE-UID": {"0"}, "X-Remote-Anything": {"x"}, "Proxy-Authorization": {"Basic eA=="},
		"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io.dG9rZW4tb2YtYm9i, v4.channel.k8s.io"}, "X-Forwarded-For": {"1.2.3.4"},
		"X-Forwarded-Host": {"evil"}, "Forwarded": {"for=1.2.3.4"},
	}
	want := map[string][]string{
		"x-remote-user": {"bob"}, "x-remote-uid": {"uid-bob"}, "x-remote-group": {"people", "system:authenticated"}, "x-remote-extra-scope": {"all"},
	}
	everyWay(t, func(t *testing.T, proto string) {
		r := w.request(t, "GET", remoteGV+"/widgets", nil)
		r.Header = forged.Clone()
		r.Header.Set("Authorization", "Bearer token-of-bob")
		if proto == "http/1.1" {
			r.Header.Set("Connection", "X-Remote-User, X-Remote-Group, Audit-Id")
		}
		if got := w.do(t, w.httpClient(t, proto, nil), r); got.status != 200 {
			t.Fatalf("status %d: %s", got.status, got.body)
		}
		in := w.remote.last(t)
		if diff := cmp.Diff(want, identityFields(in.header)); diff != "" {
			t.Errorf("identity (-want +got):\n%s", diff)
		}
		if got := in.header.Get("X-Forwarded-For"); got != "127.0.0.1" {
			t.Errorf("X-Forwarded-For %q: a stranger's word was passed on", got)
		}
		for name, values := range in.header {
			if strings.Contains(strings.Join(values, ","), "bearer.authorization") {
				t.Errorf("%s carries the token", name)
			}
		}
	})
}

// A client that lists what says as whom it comes must not become somebody else: not nobody, and not
// the proxy that impersonates it.
func TestListedCredentialsStay(t *testing.T) {
	w := newWorld(t, worldConfig{local: switching})
	want := map[string][]string{"authorization": {"Bearer token-of-bob"}, "impersonate-user": {"carol"}, "impersonate-extra-scope": {"all"}}
	for name, listed := range map[string]string{"request": "", "upgrade": "Upgrade, "} {
		r := w.request(t, "GET", "/api/v1/pods", nil)
		r.Header = http.Header{
			"Authorization": {"Bearer token-of-bob"}, "Impersonate-User": {"carol"}, "Impersonate-Extra-Scope": {"all"}, "X-Other": {"x"}, "Upgrade": {"websocket"},
			"Connection": {listed + "Authorization, impersonate-user", "Impersonate-Extra-Scope, X-Other"},
		}
		w.write(t, nil, r)
		in := w.local.last(t)
		if diff := cmp.Diff(want, identityFields(in.header)); diff != "" || in.header.Get("X-Other") != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// HTTP/2 has no 101 (RFC 9113, 8.6), and a client that did not ask for another protocol must not be
// told that it is spoken now: what stands between it and us may take all that follows for that
// protocol's.
func TestUnasked101(t *testing.T) {
	w := newWorld(t, worldConfig{remote: func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(http.StatusSwitchingProtocols)
		_, _ = io.WriteString(rw, "smuggled")
	}})
	everyWay(t, func(t *testing.T, proto string) {
		r := w.as(t, "bob", "GET", remoteGV+"/widgets", nil)
		if got := w.do(t, w.httpClient(t, proto, nil), r); got.status != http.StatusBadGateway || strings.Contains(got.body, "smuggled") {
			t.Errorf("status %d: %s", got.status, got.body)
		}
	})
}

func TestForgedTrailersDoNothing(t *testing.T) {
	w := newWorld(t, worldConfig{})
	everyWay(t, func(t *testing.T, proto string) {
		r := w.request(t, "POST", remoteGV+"/widgets", io.NopCloser(strings.NewReader("body")))
		r.ContentLength = -1
		r.Header.Set("Authorization", "Bearer token-of-bob")
		r.Trailer = http.Header{"X-Remote-User": {"system:admin"}, "X-Checksum": {"abc"}, "X_remote-Group": {"system:masters"}}
		if got := w.do(t, w.httpClient(t, proto, nil), r); got.status != 200 {
			t.Fatalf("status %d: %s", got.status, got.body)
		}
		in := w.remote.last(t)
		// The engine passes the announcement on, and no value.
		maps.DeleteFunc(in.trailer, func(_ string, values []string) bool { return values == nil })
		if diff := cmp.Diff(http.Header{"X-Checksum": {"abc"}}, in.trailer); diff != "" {
			t.Errorf("trailers (-want +got):\n%s", diff)
		}
	})
}

func TestTargetIsForwardedAsItStands(t *testing.T) {
	w := newWorld(t, worldConfig{})
	for _, target := range []string{
		remoteGV + "/widgets/a%2Fb", remoteGV + "/widgets/%C3%A9?b=2&a=1&&c", remoteGV + "/widgets?x=%zz;y", remoteGV + "/widgets/?", remoteGV + "/widgets/a'b(c)|d",
	} {
		everyWay(t, func(t *testing.T, proto string) {
			r := w.as(t, "bob", "GET", target, nil)
			got := w.do(t, w.httpClient(t, proto, nil), r)
			if got.status != 200 {
				t.Fatalf("%s: status %d: %s", target, got.status, got.body)
			}
			if in := w.remote.last(t); in.target != target {
				t.Errorf("arrived as %q, want %q", in.target, target)
			}
		})
	}
}

// Ambiguous paths, and CONNECT, which is no method of an API, reach nobody. Over HTTP/2 a backend
// would get no path with it, that is, something else than was authorized.
func TestWhatReachesNobody(t *testing.T) {
	bothBackends(t, worldConfig{}, func(t *testing.T, w *world) {
		for line, want := range map[string]int{
			"GET /apis/remote.example.com%2Fv1/widgets":                     400,
			"GET /apis//remote.example.com/v1/widgets":                      400,
			"GET /api/v1/../../apis/remote.example.com/v1/widgets":          400,
			"GET /apis/apps/v1/%2e%2e/%2e%2e/remote.example.com/v1/widgets": 400,
			"GET /apis/remote.example.com/v1/../../../api/v1/secrets":       400,
			"CONNECT " + remoteGV + "/widgets":                              405,
			"CONNECT /api/v1/namespaces/a/pods/b/proxy/":                    405,
			"CONNECT 10.0.0.1:22":                                           405,
		} {
			if res, _, _ := w.raw(t, line, "Connection: close\r\n\r\n"); res.StatusCode != want {
				t.Errorf("%s: status %d, want %d", line, res.StatusCode, want)
			}
			if w.remote.count()+w.local.count() != 0 {
				t.Fatalf("%s: reached a backend", line)
			}
		}
	})
}

// A front proxy's word about addresses counts, a stranger's does not.
func TestForwardedForOfATrustedProxy(t *testing.T) {
	w := newWorld(t, worldConfig{})
	r := w.request(t, "GET", "/api/v1/pods", nil)
	r.Header = http.Header{"X-Remote-User": {"carol"}, "X-Forwarded-For": {"203.0.113.7"}}
	w.do(t, w.httpClient(t, "h2", w.authorities.front.Issue(pki.Leaf{CommonName: "outer"})), r)
	if got := w.local.last(t).header.Get("X-Forwarded-For"); got != "203.0.113.7, 127.0.0.1" {
		t.Errorf("X-Forwarded-For %q", got)
	}
}

// CVE-2018-1002105: after an upgrade that the backend refused, kube-apiserver left the connection
// to the backend open for whatever the client sent next, with the proxy's own identity.
func TestCVE20181002105(t *testing.T) {
	refuse := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upgrade here", http.StatusForbidden) }
	for _, side := range []struct{ name, path string }{{"remote", remoteGV + "/namespaces/a/pods/b/exec"}, {"local", "/api/v1/namespaces/a/pods/b/exec"}} {
		t.Run(side.name, func(t *testing.T) {
			w := newWorld(t, worldConfig{remote: refuse, local: refuse})
			smuggled := "GET /apis/remote.example.com/v1/secrets HTTP/1.1\r\nHost: x\r\nX-Remote-User: system:admin\r\nX-Remote-Group: system:masters\r\n\r\n"
			// All at once, so that the second request is there before the answer to the first.
			res, br, _ := w.raw(t, "POST "+side.path, "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"+smuggled)
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != 403 || !strings.Contains(string(body), "no upgrade here") {
				t.Fatalf("status %d: %s", res.StatusCode, body)
			}
			// The connection ends; nothing answers the second request.
			if rest, err := io.ReadAll(br); err == nil && len(rest) > 0 {
				t.Errorf("after the refusal came %q", rest)
			}
			for _, f := range []*far{w.remote, w.local} {
				f.mu.Lock()
				for _, in := range f.got {
					if strings.Contains(in.target, "secrets") {
						t.Errorf("the second request arrived, as %v", identityFields(in.header))
					}
				}
				f.mu.Unlock()
			}
		})
	}
}

func TestUnofferedUpgradesAreIgnored(t *testing.T) {
	w := newWorld(t, worldConfig{})
	for _, protocol := range []string{"h2c", "TLS/1.0", "HTTP/2.0", "websocket, h2c"} {
		res, _, _ := w.raw(t, "GET "+remoteGV+"/widgets", "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: "+protocol+"\r\nHTTP2-Settings: AAMAAABk\r\n\r\n")
		in := w.remote.last(t)
		if res.StatusCode != 200 || in.header.Get("Upgrade") != "" || in.header.Get("Http2-Settings") != "" {
			t.Errorf("Upgrade: %s: status %d, arrived with %v", protocol, res.StatusCode, in.header)
		}
	}
}
