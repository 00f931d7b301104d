package authn

import (
	"crypto/x509"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// A JWT has one payer, however it is written, and each other token its own. None shows the token.
func TestPayerOfToken(t *testing.T) {
	jwt := newToken("e30.e30.AA").payer()
	for _, token := range []string{"e31.e33.AB", "e30.e30."} {
		check.Same(t, jwt, newToken(token).payer(), "payer of %s", token)
	}
	known := map[string]bool{jwt: true}
	for _, token := range []string{"e30.e30", "e30.e30.AA.AA", "e30.AA.AA", "e30.e30=.AA", "opaque", "..", "e30.eyB9.AA"} {
		payer := newToken(token).payer()
		check.Same(t, false, known[payer] || strings.Contains(payer, token), "payer %q of %s is another's, or shows it", payer, token)
		known[payer] = true
	}
}

// Users that are known without the local apiserver are asserted to it: in Impersonate-*, if there
// is a credential for it.
func TestKnownUsers(t *testing.T) {
	u := &user.DefaultInfo{Name: "alice"}
	for kind, want := range map[Kind]user.Info{KindFrontProxy: u, KindCertificate: u, KindIssued: u, KindInvalid: nil} {
		c := &Credentials{Kind: kind, User: want}
		a := newAuthenticator(t, Config{})
		got, known := a.Cached(c, "")
		check.Same(t, true, known && got == want, "kind %d is known, and as whom: %v", kind, got)
		if want != nil {
			check.Same(t, PoolCertificate, a.Pool(c), "pool of kind %d", kind)
			check.Same(t, PoolImpersonate, newImpersonator(t).Pool(c), "pool of kind %d, with a credential", kind)
		}
	}
}

// The issuer of a token is determined once for a connection and configuration, off the loop for a
// long token. A token of our issuers is the only one that counts.
func TestIssued(t *testing.T) {
	var asked, generation uint64
	a := newAuthenticator(t, Config{
		ReviewGeneration: func() uint64 { return generation },
		Issued:           func(token string) bool { asked++; return strings.HasPrefix(token, "jwt.") },
	})
	long, longest := "jwt."+strings.Repeat("x", maxPeek), "jwt."+strings.Repeat("x", maxRemembered)
	on, stale := &Conn{}, &Credentials{} // of no token
	for _, tc := range []struct {
		name          string
		conn          *Conn
		kind          Kind
		token, second string
		wait          bool
		is, known     bool
		asked         uint64 // so far
	}{
		{"first", on, KindToken, "jwt.a.b", "bob", false, true, true, 1},
		{"again", on, KindToken, "jwt.a.b", "bob", false, true, true, 1},
		{"another", on, KindToken, "alice", "bob", false, false, true, 3}, // both tokens are checked
		{"long", on, KindToken, long, "bob", false, false, false, 3},
		{"long, with time", on, KindToken, long, "bob", true, true, true, 4},
		{"long, again", on, KindToken, long, "bob", false, true, true, 4},
		{"long, later", on, KindToken, long, "bob", false, false, false, 4},
		{"longest", on, KindToken, longest, "bob", true, true, true, 5},
		{"longest, which is not remembered", on, KindToken, longest, "bob", true, true, true, 6},
		{"second", nil, KindToken, "alice", "jwt.a.b", false, false, true, 8},
		{"second, long", nil, KindToken, "alice", long, false, false, false, 8},
		{"second, long, with time", nil, KindToken, "alice", long, true, false, true, 10},
		{"anonymous", nil, KindNone, "jwt.a.b", "", false, false, true, 10},
		{"certificate", nil, KindCertificate, "jwt.a.b", "", false, false, true, 10},
		{"front proxy", nil, KindFrontProxy, "jwt.a.b", "", false, false, true, 10},
		{"invalid", nil, KindInvalid, "jwt.a.b", "", false, false, true, 10},
	} {
		if tc.name == "long, later" {
			generation++
		}
		c := Credentials{Kind: tc.kind, Token: newToken(tc.token), second: newToken(tc.second)}
		is, known := a.Issued(tc.conn, &c, stale)
		if !known && tc.wait { // off the loop
			is, known = a.Issued(tc.conn, &c, a.FindIssuer(tc.conn, &c))
		}
		check.Same(t, [3]bool{tc.is, tc.known, tc.is || tc.second == ""}, [3]bool{is, known, c.second.none()}, "%s: issued here, known, and alone", tc.name)
		check.Same(t, tc.asked, asked, "%s: times that it was asked", tc.name)
		if known && strings.HasPrefix(tc.second, "jwt.") {
			tc.kind = KindInvalid
		}
		check.Same(t, tc.kind, c.Kind, "%s: kind", tc.name)
	}
}

// A connection is verified once, however many requests come together. A verification takes a turn
// only if it must run, and releases it.
func TestConnVerifiesOnce(t *testing.T) {
	client, front := newAuthority("client-ca"), newAuthority("front-ca")
	var clients, fronts, entered, left atomic.Int64
	counted := func(n *atomic.Int64, by *authority) func([]*x509.Certificate) ([][]*x509.Certificate, error) {
		return func(peer []*x509.Certificate) ([][]*x509.Certificate, error) { n.Add(1); return by.verify()(peer) }
	}
	a := newAuthenticator(t, Config{VerifyClient: counted(&clients, client), VerifyFrontProxy: counted(&fronts, front)})
	c := &Conn{Peer: client.issue(pki.Leaf{CommonName: "alice"}, time.Hour)}
	busy := errors.New("busy")
	check.Is(t, busy, a.Verify(c, func() (func(), error) { return nil, busy }), "without a turn")
	_, known := a.Read(c, nil, "", time.Time{})
	check.Same(t, false, known, "read before it was verified")
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			check.Is(t, nil, a.Verify(c, func() (func(), error) { entered.Add(1); return func() { left.Add(1) }, nil }), "with a turn")
			got, known := a.Read(c, nil, "", time.Time{})
			check.Same(t, true, known && got.Kind == KindCertificate && got.User.GetName() == "alice", "known %v: %+v", known, got)
		})
	}
	wg.Wait()
	check.Is(t, nil, a.Verify(c, func() (func(), error) { return nil, busy }), "a turn is not wanted again")
	check.Same(t, [2]int64{1, 1}, [2]int64{clients.Load(), fronts.Load()}, "verifications by each CA")
	check.Same(t, true, entered.Load() > 0 && entered.Load() == left.Load(), "%d turns taken, %d released", entered.Load(), left.Load())
	_, known = a.Read(c, nil, "", c.Peer[0].NotAfter.Add(1))
	check.Same(t, false, known, "read when its certificate has expired")
}

// The result of a verification lasts as long as the CA, and as the certificates of the chain.
func TestVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var generation atomic.Uint64
		var n atomic.Int64
		var verify func([]*x509.Certificate) ([][]*x509.Certificate, error)
		a := newAuthenticator(t, Config{Generation: generation.Load, VerifyClient: func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
			n.Add(1)
			return verify(peer)
		}})
		alice := pki.Leaf{CommonName: "alice"}
		ca := newAuthority("client-ca") // valid for ten days
		trust := func(ca *authority) func() { return func() { verify = ca.verify() } }
		trust(ca)()
		other := newAuthority("client-ca")
		refuse := func() {
			verify = func([]*x509.Certificate) ([][]*x509.Certificate, error) { return nil, errors.New("no longer trusted") }
		}
		next := func() { generation.Add(1) }
		short, long := &Conn{Peer: ca.issue(alice, time.Minute)}, &Conn{Peer: ca.issue(alice, 20*24*time.Hour)}
		early := &Conn{Peer: []*x509.Certificate{ca.Issue(pki.Leaf{CommonName: "alice", NotBefore: time.Now().Add(11 * time.Minute)}).Certificate}}
		for _, step := range []struct {
			name     string
			conn     *Conn
			first    func()
			later    time.Duration
			want     Kind
			verified int64 // so far
		}{
			{"at first", long, nil, 0, KindCertificate, 1},
			{"another CA, the generation is unchanged", long, trust(other), 0, KindCertificate, 1},
			{"the next generation", long, next, 0, KindInvalid, 2},
			{"the first CA again", long, func() { trust(ca)(); next() }, 0, KindCertificate, 3},
			{"the CA changes meanwhile", long, func() {
				next()
				verify = func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
					next()
					return ca.verify()(peer)
				}
			}, 0, KindNone, 4},
			{"the result of the old one is not used", long, refuse, 0, KindInvalid, 5},
			{"nor is the new one's asked again", long, trust(ca), retryVerify - time.Second, KindInvalid, 5},
			{"until the clock may be right", long, nil, 2 * time.Second, KindCertificate, 6},
			{"not valid yet", early, nil, 0, KindInvalid, 7},
			{"valid, sooner than the clock may be right", early, nil, time.Minute, KindCertificate, 8},
			{"a new leaf", short, func() { short.Peer = ca.issue(alice, time.Minute) }, 0, KindCertificate, 9},
			{"just before it ends", short, nil, time.Minute - 2*time.Second, KindCertificate, 9},
			{"after it", short, nil, 3 * time.Second, KindInvalid, 10},
			{"just before the CA ends", long, nil, 10*24*time.Hour - 13*time.Minute, KindCertificate, 10},
			{"after it", long, nil, 13 * time.Minute, KindInvalid, 11},
		} {
			if step.first != nil {
				step.first()
			}
			time.Sleep(step.later)
			check.Same(t, step.want, read(a, step.conn, nil, "").Kind, "%s: kind", step.name)
			check.Same(t, step.verified, n.Load(), "%s: verifications", step.name)
		}
	})
}

// A missing CA is no reason to refuse a request, as upstream.
func TestNoOpinion(t *testing.T) {
	ca := newAuthority("ca")
	none := func([]*x509.Certificate) ([][]*x509.Certificate, error) { return nil, nil }
	a := newAuthenticator(t, Config{VerifyClient: none, VerifyFrontProxy: none})
	c := &Conn{Peer: ca.issue(pki.Leaf{CommonName: "alice"}, time.Hour)}
	check.Same(t, KindNone, read(a, c, head("x-remote-user", "root"), "").Kind, "kind of a certificate")
	check.Same(t, KindNone, read(a, nil, nil, "").Kind, "kind of nothing")
	_, known := newAuthenticator(t, Config{}).Read(&Conn{Peer: c.Peer}, nil, "", time.Time{})
	check.Same(t, true, known, "a certificate need not be verified without a CA")
}

// A value remembered from one request is never used for another value of the next one.
func TestConnRemembersTokens(t *testing.T) {
	a, c := newAuthenticator(t, Config{}), &Conn{}
	long := strings.Repeat("x", maxRemembered)
	for _, f := range []struct{ value, want string }{
		{"Bearer alice", "alice"}, {"Bearer alice", "alice"}, {"Bearer bob", "bob"}, {"", ""}, {"Bearer alice", "alice"}, {"Bearer alic", "alic"},
		{"Basic alice", ""}, {"Basic alice", ""}, {"Bearer " + long, long}, {"Bearer " + long, long}, {"bearer bob", "bob"},
	} {
		check.Same(t, f.want, read(a, c, head("authorization", f.value), "").Token.Secret(), "token of %.20q", f.value)
		check.Within(t, 1, maxRemembered, len(c.last.Load().value), "bytes of the value that is remembered")
	}
}

// A token that the local apiserver calls invalid was reviewed: its sender gets 401.
func TestInvalidToken(t *testing.T) {
	c, asked := fake.NewClientset(), 0
	c.PrependReactor("create", "tokenreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked++
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "TokenReview"}, "", nil)
	})
	_, ok, err := TokenReview(c.AuthenticationV1())(t.Context(), "x")
	check.Same(t, true, !ok && errors.Is(err, ErrUnauthenticated), "it is refused: %v, %v", ok, err)
	check.Same(t, 1, asked, "reviews")
}

// With the cluster's CA of front proxies go its fields: a proxy that follows the ConfigMap strips no others.
func TestReadTarget(t *testing.T) {
	frontCA := newAuthority("front-ca")
	names := HeaderNames{Username: []string{"X-Remote-User"}, UID: []string{"X-Id"}, Group: []string{"X-Remote-Group"}, ExtraPrefix: []string{"X-More-"}}
	a := newAuthenticator(t, Config{VerifyFrontProxy: frontCA.verify(), ReadTarget: true, Target: func() (*HeaderNames, bool) { return &names, true }})
	h := head("x-remote-user", "jane", "x-id", "1", "x-remote-group", "g", "x-more-scopes", "few", "x-remote-extra-scopes", "all")
	c := read(a, &Conn{Peer: frontCA.issue(pki.Leaf{CommonName: "front-proxy-client"}, time.Hour)}, h, "")
	check.Same(t, `jane/1["g" "system:authenticated"]map[scopes:[few]]`, describe(c.User), "user")
}

// A configured name is stripped in every spelling, including that of its first byte.
func TestStrip(t *testing.T) {
	a := newAuthenticator(t, Config{RequestHeaders: HeaderNames{
		Username: []string{"My_User", "-user"}, UID: []string{"8id"}, Group: []string{"7group"}, ExtraPrefix: []string{"Zz-", "zone-"},
	}})
	always := "x-remote-user X-REMOTE-USER x_remote_user X-Remote_Group x-remote- x-remote-extra- x_remote_extra_a my-user MY_USER zz- zz_key Zz-Key " +
		"proxy-authorization proxy_authorization -user _user 7group 7Group 8ID Zone_x zone-"
	secret := "authorization Authorization AUTHORIZATION"
	remote := "impersonate-user Impersonate-Extra-A impersonate_group impersonate- sec_websocket_protocol sec-websocket_protocol"
	never := "x x-remote xx-remote-user x-remoteuser my-users my z zz accept sec-websocket-protocol some_header_of_22_byte if-none-match authorization-x " +
		"impersonate cookie x-forwarded-for :path \xff user - -users 7grou 7groups 8ids zone"
	for p := PoolRemote; p <= PoolImpersonate; p++ {
		asserted := p == PoolRemote || p == PoolImpersonate
		for names, want := range map[string]bool{always: true, secret: asserted || p == PoolCertificate, remote: asserted, never: false, "": false} {
			for n := range strings.SplitSeq(names, " ") {
				check.Same(t, want, a.Strip(n, p), "pool %d: Strip(%q)", p, n)
			}
		}
	}
}
