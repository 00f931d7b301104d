package authn

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// FuzzRead compares our reading of any Authorization, subprotocol and front-proxy fields with that
// of upstream's authenticators.
func FuzzRead(f *testing.F) {
	front := newAuthority("front-ca")
	s := setup{front: front, names: []string{"front-proxy-client"}}
	conn := &Conn{Peer: front.issue(pki.Leaf{CommonName: "front-proxy-client"}, time.Hour)}
	for _, seed := range [][5]string{
		{"Bearer good", protocolOf("good-ws") + ",x", "", "scopes%2fall", "a"},
		{"bearer  good", bearerProtocol + "=", "bob", "%zz", ""},
		{"\u2003Bearer good", " " + protocolOf("good") + " , ,", " bob", "%", "v"},
		{"Bearer\tgood", protocolOf("good") + "," + protocolOf("good"), "system:anonymous", "A_b", "\x80"},
		{"Bearer good\x00", protocolOf("\xff") + ",x", "", "", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, authorization, protocol, name, key, value string) {
		key = "X-Remote-Extra-" + key
		if !httpguts.ValidHeaderFieldName(key) {
			return
		}
		for _, v := range []string{authorization, protocol, name, value} {
			if !httpguts.ValidHeaderFieldValue(v) {
				return // every HTTP parser refuses it earlier
			}
		}
		h := http.Header{"X-Remote-User": {name}, http.CanonicalHeaderKey(key): {value}}
		up := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
		review := newTokens()
		r := request(conn.Peer, h, up, []string{authorization}, []string{protocol})
		compare(t, s.ours(t, review), s.upstream(tokenFunc(review.review)), conn, r, "fuzz")
	})
}

// FuzzCutProtocol: all tokens that upstream would read are removed, and nothing else.
func FuzzCutProtocol(f *testing.F) {
	f.Add("a, " + protocolOf("good") + " ,b")
	f.Add(strings.ToUpper(protocolOf("good")))
	f.Add("a,b")
	f.Add(",,")
	f.Fuzz(func(t *testing.T, line string) {
		got := CutProtocol(line)
		if strings.Contains(strings.ToLower(got), bearerProtocol) {
			t.Errorf("%q still contains a token", got)
		}
		check.Same(t, got, CutProtocol(got), "what was cut, cut again")
		var want []string
		for p := range strings.SplitSeq(line, ",") {
			if !containsFold(p, bearerProtocol) {
				want = append(want, strings.TrimSpace(p))
			}
		}
		if strings.ReplaceAll(strings.Join(want, ","), " ", "") != strings.ReplaceAll(trimEach(got), " ", "") {
			t.Errorf("%q became %q", line, got)
		}
	})
}

func trimEach(line string) string {
	var out []string
	for p := range strings.SplitSeq(line, ",") {
		out = append(out, strings.TrimSpace(p))
	}
	if line == "" {
		return ""
	}
	return strings.Join(out, ",")
}

// usual is the head of a client-go request.
func usual() Head {
	return head(":method", "GET", ":scheme", "https", ":authority", "localhost:6443", ":path", "/apis/wardle.example.com/v1alpha1/flunders",
		"accept", "application/vnd.kubernetes.protobuf,application/json", "user-agent", "kube-controller-manager/v1.36.3", "accept-encoding", "gzip",
		"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
}

// hot does the work of a request whose caller is cached: identity, pool, stripped fields, and
// identity fields.
func hot(t testing.TB, a *Authenticator, conn *Conn, h Head, dst []hpack.HeaderField) {
	c := read(a, conn, h, "")
	u, known := a.Cached(&c, "/apis")
	if !known || u == nil {
		t.Fatal("unknown")
	}
	a.Pool(&c)
	for i := range h {
		a.Strip(h[i].Name, PoolRemote)
	}
	must.Get(a.Headers(dst, u))(t)
	a.Seen(&c, 200)
}

func hotCases(t testing.TB) map[string]func() {
	ca, front := newAuthority("client-ca"), newAuthority("front-ca")
	a := newAuthenticator(t, Config{VerifyClient: ca.verify(), VerifyFrontProxy: front.verify("front-proxy-client"), Review: newTokens().review, TokenTTL: time.Hour})
	peer := &Conn{Peer: ca.issue(pki.Leaf{CommonName: "alice", Organizations: []string{"dev"}}, time.Hour)}
	withToken := slices.Concat(usual(), bearer("good"+strings.Repeat("x", 1100)))
	known := &Conn{}
	c := read(a, known, withToken, "")
	must.Get(a.Review(t.Context(), &c, ""))(t)
	plain := usual()
	dst := make([]hpack.HeaderField, 0, 16)
	return map[string]func(){
		"certificate": func() { hot(t, a, peer, plain, dst) },
		"token":       func() { hot(t, a, known, withToken, dst) },
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	for name, f := range hotCases(t) {
		f()
		check.Same(t, 0, testing.AllocsPerRun(100, f), "%s: allocations", name)
	}
	a := newAuthenticator(t, Config{})
	check.Same(t, 0, testing.AllocsPerRun(100, func() {
		a.Strip("x_remote_extra_something", PoolRemote)
		a.Strip("accept-encoding", PoolRemote)
		CutProtocol("v4.channel.k8s.io, v3.channel.k8s.io")
	}), "allocations to strip")
}

func BenchmarkHotPath(b *testing.B) {
	for name, f := range hotCases(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}
