package authn

import (
	"crypto/x509/pkix"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// usual is the head of a client-go request.
func usual() Head {
	return head(":method", "GET", ":scheme", "https", ":authority", "localhost:6443", ":path", "/apis/wardle.example.com/v1alpha1/flunders",
		"accept", "application/vnd.kubernetes.protobuf,application/json", "user-agent", "kube-controller-manager/v1.36.3", "accept-encoding", "gzip",
		"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
}

// hot is what one request costs when everything is known: who it is, where it goes, what of it
// passes and what is said of it.
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
	ca, front := newAuthority(t, "client-ca"), newAuthority(t, "front-ca")
	a := newAuthenticator(t, Config{VerifyClient: ca.verify(), VerifyFrontProxy: front.verify("front-proxy-client"), Review: (&tokens{}).review, TokenTTL: time.Hour})
	peer := &Conn{Peer: ca.issue(pkix.Name{CommonName: "alice", Organization: []string{"dev"}}, time.Hour)}
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
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	a := newAuthenticator(t, Config{})
	if n := testing.AllocsPerRun(100, func() {
		a.Strip("x_remote_extra_something", PoolRemote)
		a.Strip("accept-encoding", PoolRemote)
		CutProtocol("v4.channel.k8s.io, v3.channel.k8s.io")
	}); n != 0 {
		t.Errorf("%v allocations to strip", n)
	}
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
