package authn

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
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
		compare(t, s.ours(t, review), s.upstream(authenticator.TokenFunc(review.review)), conn, r, "fuzz")
	})
}

// FuzzCutProtocol: all tokens that upstream would read are removed, and nothing else.
func FuzzCutProtocol(f *testing.F) {
	f.Add("a, " + protocolOf("good") + " ,b")
	f.Add(strings.Repeat("x", 2*len(bearerProtocol)) + ", " + strings.ToUpper(protocolOf("good")))
	f.Add("a, " + bearerProtocol)
	f.Add("a, b")
	f.Add(",,")
	f.Fuzz(func(t *testing.T, line string) {
		want := line // without a token it is unchanged
		if strings.Contains(strings.ToLower(line), bearerProtocol) {
			var kept []string
			for p := range strings.SplitSeq(line, ",") {
				if !strings.Contains(strings.ToLower(p), bearerProtocol) {
					kept = append(kept, strings.TrimSpace(p))
				}
			}
			want = strings.Join(kept, ",")
		}
		check.Same(t, want, CutProtocol(line), "what is left")
	})
}

func TestHotPathAllocatesNothing(t *testing.T) {
	ca, front := newAuthority("client-ca"), newAuthority("front-ca")
	a := newAuthenticator(t, Config{VerifyClient: ca.verify(), VerifyFrontProxy: front.verify("front-proxy-client"), Review: newTokens().review, TokenTTL: time.Hour})
	usual := head(":method", "GET", ":path", "/apis/wardle.example.com/v1alpha1/flunders", "accept", "application/json", "x_remote_extra_something", "x")
	dst := make([]hpack.HeaderField, 0, 16)
	for name, tc := range map[string]struct {
		conn *Conn
		head Head
	}{
		"certificate": {&Conn{Peer: ca.issue(pki.Leaf{CommonName: "alice", Organizations: []string{"dev"}}, time.Hour)}, usual},
		"token":       {&Conn{}, slices.Concat(usual, bearer("good"+strings.Repeat("x", 1100)))},
	} {
		c := read(a, tc.conn, tc.head, "")
		must.Get(identify(t, a, &c, ""))(t)
		check.Same(t, 0, testing.AllocsPerRun(100, func() {
			c := read(a, tc.conn, tc.head, "")
			u, known := a.Cached(&c, "/apis")
			if !known || u == nil {
				t.Fatal("unknown")
			}
			a.Pool(&c)
			for i := range tc.head {
				a.Strip(tc.head[i].Name, PoolRemote)
			}
			must.Get(a.Assert(dst, u, PoolRemote))(t)
			a.Seen(&c, 200)
			CutProtocol("v4.channel.k8s.io, v3.channel.k8s.io")
		}), "%s: allocations", name)
	}
}
