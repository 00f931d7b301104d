package proxy

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A client that lists its credential fields in Connection must not become another user: neither
// anonymous nor the proxy that impersonates it.
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

// HTTP/2 has no 101 (RFC 9113, 8.6), and a client that asked for no other protocol must not get
// one: a proxy before Fairlead might treat all later bytes as part of that protocol. net/http reads
// any three digits as a status, and its server panics on one below 100.
func TestStatusThatIsNone(t *testing.T) {
	odd := hijacked(func(c io.ReadWriter, r *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 "+r.URL.RawQuery+" Odd\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 8\r\n\r\nsmuggled")
	})
	bothBackends(t, worldConfig{remote: func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 {
			w.WriteHeader(http.StatusSwitchingProtocols)
			_, _ = io.WriteString(w, "smuggled")
		}
		odd(w, r) // over HTTP/2, there is nothing to take over
	}}, func(t *testing.T, w *world) {
		everyWay(t, func(t *testing.T, proto string) {
			for _, status := range []string{"101", "099"} {
				if got := w.get(t, proto, remoteGV+"/widgets?"+status); got.status != http.StatusBadGateway || strings.Contains(got.body, "smuggled") {
					t.Errorf("%s: status %d: %s", status, got.status, got.body)
				}
			}
		})
	})
}

func TestTargetIsForwardedAsItStands(t *testing.T) {
	w := newWorld(t, worldConfig{})
	for _, target := range []string{
		remoteGV + "/widgets/a%2Fb;c", remoteGV + "/widgets/...;c", remoteGV + "/widgets/%C3%A9?b=2&a=1&&c", remoteGV + "/widgets?x=%zz;y", remoteGV + "/widgets/?", remoteGV + "/widgets/a'b(c)|d",
	} {
		everyWay(t, func(t *testing.T, proto string) {
			w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "GET", target, nil)).want(t, 200, target)
			if in := w.remote.last(t); in.target != target {
				t.Errorf("arrived as %q, want %q", in.target, target)
			}
		})
	}
}

// Ambiguous paths and CONNECT reach no backend. Over HTTP/2 a backend would get a CONNECT without a
// path, which differs from the authorized request.
func TestWhatReachesNobody(t *testing.T) {
	bothBackends(t, worldConfig{}, func(t *testing.T, w *world) {
		for line, want := range map[string]int{
			"GET /apis/remote.example.com%2Fv1/widgets":                     400,
			"GET /apis//remote.example.com/v1/widgets":                      400,
			"GET /api/v1/../../apis/remote.example.com/v1/widgets":          400,
			"GET /apis/apps/v1/%2e%2e/%2e%2e/remote.example.com/v1/widgets": 400,
			"GET /apis/remote.example.com/v1/../../../api/v1/secrets":       400,
			"GET " + remoteGV + "/namespaces/mine/widgets/..;/..;/theirs":   400, // Java servers cut parameters first (CVE-2020-5902)
			"GET " + remoteGV + "/widgets/.%2e;a/secrets":                   400,
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

// The audit log has no text of a client instead of an address, whatever a front proxy passes on,
// and not more addresses than a chain of proxies has: the nearest, which a client cannot choose.
func TestSourceIPs(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	for field, want := range map[string]string{
		"": "10.0.0.1", "203.0.113.7, ::1": "203.0.113.7 ::1 10.0.0.1", long + " , 203.0.113.7,": "203.0.113.7 10.0.0.1", "fe80::1%" + long: "10.0.0.1",
		strings.Repeat("1.2.3.4,", 100) + "203.0.113.7": strings.Repeat("1.2.3.4 ", maxSources-1) + "203.0.113.7 10.0.0.1",
		"192.0.2.1,\n192.0.2.2\n203.0.113.7":            "192.0.2.1 192.0.2.2 203.0.113.7 10.0.0.1",
	} {
		h := &Head{RemoteIP: "10.0.0.1"}
		for line := range strings.SplitSeq(field, "\n") {
			h.Fields = append(h.Fields, hpack.HeaderField{Name: "x-forwarded-for", Value: line})
		}
		d := &Decision{}
		if got := strings.Join(sourceIPs(h, d), " "); got != "10.0.0.1" {
			t.Errorf("%.40q of a stranger: %.80q", field, got)
		}
		d.Credentials.Kind = authn.KindFrontProxy
		if got := strings.Join(sourceIPs(h, d), " "); got != want {
			t.Errorf("%.40q: %.80q", field, got)
		}
	}
}

// X-Forwarded-For counts from a front proxy, not from a stranger. A front proxy may add a field of
// its own behind its client's, as HAProxy does.
func TestForwardedForOfATrustedProxy(t *testing.T) {
	w := newWorld(t, worldConfig{})
	r := w.request(t, "GET", "/api/v1/pods", nil)
	r.Header = http.Header{"X-Remote-User": {"carol"}, "X-Forwarded-For": {"192.0.2.1", "", "203.0.113.7"}}
	w.do(t, w.httpClient(t, "h2", w.authorities.front.Issue(pki.Leaf{CommonName: "outer"})), r)
	check.Same(t, "192.0.2.1, 203.0.113.7, 127.0.0.1", w.local.last(t).header.Get("X-Forwarded-For"), "X-Forwarded-For")
}

// A front proxy's fields are continued, a stranger's are not. A chain without end is cut.
func TestFieldsOfAHop(t *testing.T) {
	p, long := &Proxy{instance: "this"}, strings.Repeat("x", maxVia-1)
	for _, tc := range []struct {
		name, via, host   string
		trusted           bool
		wantVia, wantHost string
	}{
		{"the first", "", "", true, "this", "front.example.com"},
		{"the second", "other", "outer.example.com", true, "other, this", "outer.example.com"},
		{"a stranger's", "other", "outer.example.com", false, "other, this", "front.example.com"},
		{"a long chain", long, "", false, long + ", this", "front.example.com"},
		{"a longer one", long + "x", "", false, "this", "front.example.com"},
	} {
		h := &Head{Authority: "front.example.com", Fields: authn.Head{{Name: loopHeader, Value: tc.via}, {Name: "x-forwarded-host", Value: tc.host}}}
		set := &Head{Fields: p.forwarded(nil, h, tc.trusted)}
		if via, host := set.get(loopHeader), set.get("x-forwarded-host"); via != tc.wantVia || host != tc.wantHost {
			t.Errorf("%s: via %.40q, host %q", tc.name, via, host)
		}
	}
}

// A client's audit ID is taken if kube-apiserver would not shorten it. Ours is made once, and stays
// out of HPACK's tables.
func TestAuditIDs(t *testing.T) {
	for _, n := range []int{0, 1, maxAuditID, maxAuditID + 1} {
		h := &Head{Fields: authn.Head{{Name: auditHeader, Value: strings.Repeat("x", n)}}}
		set, id := identified(nil, h)
		if n > 0 && n <= maxAuditID {
			if id != h.Fields[0].Value || set != nil {
				t.Errorf("of %d bytes: %q, set %v", n, id, set)
			}
			continue
		}
		if len(set) != 1 || !set[0].Sensitive || set[0].Value != id || !uuid4.MatchString(id) {
			t.Errorf("of %d bytes: %q, set %v", n, id, set)
		}
		if again, same := identified(set, h); same != id || len(again) != 1 {
			t.Errorf("of %d bytes: %q became %q, set %v", n, id, same, again)
		}
	}
}

// The names that Connection lists are those of fields: its other tokens concern the connection.
func TestListedNames(t *testing.T) {
	check.Same(t, []string{"x-a", "x-b", "x-c"}, listedIn(nil, "close, X-A, ,", "keep-alive,x-b, Upgrade ,X-C"), "listed")
}

// Whatever a pool lets through in a head, no trailer may say who the caller is.
func TestTrailersNameNobody(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	strip := p.strip(&Head{}, authn.PoolUnproven)
	for name, want := range map[string][2]bool{
		"impersonate-user": {false, true}, "authorization": {false, true}, "content-length": {false, true}, "x-remote-user": {true, true}, "te": {true, true}, "x-checksum": {false, false},
	} {
		check.Same(t, want, [2]bool{strip.Removes(name), strip.RemovesTrailer(name)}, "%s: removed from the head, from the trailers", name)
	}
}

// CVE-2018-1002105: after a backend refused an upgrade, kube-apiserver left the connection to it
// open for further input of the client, with the proxy's own identity.
func TestCVE20181002105(t *testing.T) {
	refuse := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upgrade here", http.StatusForbidden) }
	for _, side := range []struct{ name, path string }{{"remote", remoteGV + "/namespaces/a/pods/b/exec"}, {"local", "/api/v1/namespaces/a/pods/b/exec"}} {
		t.Run(side.name, func(t *testing.T) {
			w := newWorld(t, worldConfig{remote: refuse, local: refuse})
			smuggled := "GET /apis/remote.example.com/v1/secrets HTTP/1.1\r\nHost: x\r\nX-Remote-User: system:admin\r\nX-Remote-Group: system:masters\r\n\r\n"
			// Sent at once, so that the second request is there before the answer to the first.
			res, br, _ := w.raw(t, "POST "+side.path, "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"+smuggled)
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != 403 || !strings.Contains(string(body), "no upgrade here") {
				t.Fatalf("status %d: %s", res.StatusCode, body)
			}
			// The connection ends, and the second request gets no answer.
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

// A backend that refuses an upgrade and never ends its answer is cut off after refusalTimeout.
func TestRefusalThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		go func() { _, _ = io.WriteString(far, "HTTP/1.1 403 Forbidden\r\nContent-Length: 10\r\n\r\nno") }()
		res := must.Get(http.ReadResponse(bufio.NewReader(near), nil))(t)
		begun := time.Now()
		defer func() {
			if cut, _ := recover().(error); !errors.Is(cut, http.ErrAbortHandler) || time.Since(begun) != refusalTimeout {
				t.Errorf("after %v: %v", time.Since(begun), cut)
			}
		}()
		(&Proxy{log: slog.New(slog.DiscardHandler)}).relayRefusal(httptest.NewRecorder(), near, res)
	})
}

// identityFields returns the fields that identify the caller to a backend.
func identityFields(h http.Header) map[string][]string {
	out := map[string][]string{}
	for name, values := range h {
		lower := strings.ToLower(name)
		if strings.HasPrefix(lower, "x-remote") || strings.HasPrefix(lower, "x_remote") || lower == "authorization" || lower == "proxy-authorization" || strings.HasPrefix(lower, "impersonate") {
			out[lower] = values
		}
	}
	return out
}

// ignoreCredentialID omits the certificate's digest, which differs from run to run.
func ignoreCredentialID() cmp.Option {
	return cmpopts.IgnoreMapEntries(func(name string, _ []string) bool { return strings.HasPrefix(name, "x-remote-extra-authentication") })
}

// Each backend gets the caller's identity and nothing that a client adds to it;
// proxy/authn.TestDesignTable has all ways to authenticate.
func TestIdentity(t *testing.T) {
	w := newWorld(t, worldConfig{})
	alice := w.client.Issue(pki.Leaf{CommonName: "alice", Organizations: []string{"dev"}})
	foreign := pki.NewCA("elsewhere").Issue(pki.Leaf{CommonName: "mallory"})
	front := w.authorities.front.Issue(pki.Leaf{CommonName: "outer-proxy"})
	aliceIs := map[string][]string{"x-remote-user": {"alice"}, "x-remote-group": {"dev", "system:authenticated"}}
	bobIs := map[string][]string{
		"x-remote-user": {"bob"}, "x-remote-uid": {"uid-bob"}, "x-remote-group": {"people", "system:authenticated"}, "x-remote-extra-scope": {"all"},
	}
	carolIs := map[string][]string{"x-remote-user": {"carol"}, "x-remote-group": {"ops", "system:authenticated"}}
	janeIs := map[string][]string{"x-remote-user": {"jane"}, "x-remote-group": {"dev", "system:authenticated"}}
	token := func(v string) http.Header { return http.Header{"Authorization": {v}} }
	jane := func(by string) http.Header {
		return http.Header{"Authorization": {"Bearer token-of-" + by}, "Impersonate-User": {"jane"}, "Impersonate-Group": {"dev"}}
	}
	forged := http.Header{
		"X_Remote_User": {"system:admin"}, "X-Remote_Group": {"system:masters"}, "X-Remote-Anything": {"x"}, "Proxy-Authorization": {"Basic eA=="},
		"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io.dG9rZW4tb2YtYm9i, v4.channel.k8s.io"}, "Forwarded": {"for=1.2.3.4"}, "X-Real-Ip": {"1.2.3.4"},
		"X-Forwarded-Proto": {"http"}, "X-Forwarded-Uri": {"/elsewhere"},
	}
	forgedIdentity := http.Header{
		"X-Remote-User": {"system:admin"}, "x-remote-group": {"system:masters"}, "X-Remote-Extra-Scopes": {"all"}, "X-REMOTE-UID": {"0"}, "X-Forwarded-For": {"1.2.3.4"}, "X-Forwarded-Host": {"evil"},
	}
	for _, tc := range []struct {
		name                    string
		pair                    *pki.Pair
		header                  http.Header
		remote, local           map[string][]string
		remoteStatus, localCode int
		localPeer               string
	}{
		{"certificate", alice, nil, aliceIs, aliceIs, 200, 200, "front-proxy-client"},
		{"token", nil, token("Bearer token-of-bob"), bobIs, identityFields(token("Bearer token-of-bob")), 200, 200, ""},
		{"bad token", nil, token("Bearer nonsense"), nil, identityFields(token("Bearer nonsense")), 401, 200, ""},
		{"front proxy", front, http.Header{"X-Remote-User": {"carol"}, "X-Remote-Group": {"ops"}}, carolIs, carolIs, 200, 200, "front-proxy-client"},
		{"nothing", nil, nil, nil, map[string][]string{}, 401, 200, ""},
		{"certificate and token", alice, token("Bearer token-of-bob"), aliceIs, aliceIs, 200, 200, "front-proxy-client"},
		{"foreign certificate", foreign, nil, nil, nil, 401, 401, ""},
		{"impersonation", nil, jane("boss"), janeIs, identityFields(jane("boss")), 200, 200, ""},
		{"impersonation by who may not", nil, jane("bob"), nil, identityFields(jane("bob")), 403, 200, ""},
		{"denied user", nil, token("Bearer token-of-nobody"), nil, identityFields(token("Bearer token-of-nobody")), 403, 200, ""},
	} {
		everyWay(t, func(t *testing.T, proto string) {
			for _, side := range []struct {
				far        *far
				path, peer string
				status     int
				want       map[string][]string
			}{
				{w.remote, remoteGV + "/widgets", "front-proxy-client", tc.remoteStatus, tc.remote},
				{w.local, "/api/v1/pods", tc.localPeer, tc.localCode, tc.local},
			} {
				before, about := side.far.count(), tc.name+", "+side.path
				r := w.request(t, "GET", side.path, nil)
				if maps.Copy(r.Header, forged); tc.pair != front {
					maps.Copy(r.Header, forgedIdentity)
				}
				if proto == "http/1.1" {
					r.Header.Set("Connection", "X-Remote-User, X-Remote-Group, Audit-Id")
				}
				maps.Copy(r.Header, tc.header)
				w.do(t, w.httpClient(t, proto, tc.pair), r).want(t, side.status, about)
				if side.status != 200 {
					check.Same(t, 0, side.far.count()-before, "%s: refused requests at the backend", about)
					continue
				}
				in := side.far.last(t)
				if diff := cmp.Diff(side.want, identityFields(in.header), ignoreCredentialID()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", about, diff)
				}
				check.Same(t, side.peer, in.peer, "%s: certificate", about)
				check.Same(t, []string{"127.0.0.1"}, in.header.Values("X-Forwarded-For"), "%s: X-Forwarded-For, without a stranger's", about)
				check.Same(t, []string{"https"}, in.header.Values("X-Forwarded-Proto"), "%s: X-Forwarded-Proto", about)
				// Audit logs believe the first. The last is a token.
				for _, name := range []string{"X-Real-Ip", "Forwarded", "X-Forwarded-Uri", "Sec-Websocket-Protocol"} {
					check.Same(t, "", in.header.Get(name), "%s: %s", about, name)
				}
			}
		})
	}
}
