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

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// counted counts verifications.
func counted(n *atomic.Int64, verify func([]*x509.Certificate) ([][]*x509.Certificate, error)) func([]*x509.Certificate) ([][]*x509.Certificate, error) {
	return func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
		n.Add(1)
		return verify(peer)
	}
}

// A connection is verified once, however many requests come together. A verification takes a turn
// only if it must run, and releases it.
func TestConnVerifiesOnce(t *testing.T) {
	client, front := newAuthority("client-ca"), newAuthority("front-ca")
	var clients, fronts, entered, left atomic.Int64
	a := newAuthenticator(t, Config{VerifyClient: counted(&clients, client.verify()), VerifyFrontProxy: counted(&fronts, front.verify())})
	c := &Conn{Peer: client.issue(pki.Leaf{CommonName: "alice"}, time.Hour)}
	busy := errors.New("busy")
	if err := a.Verify(c, func() (func(), error) { return nil, busy }); !errors.Is(err, busy) {
		t.Errorf("without a turn: %v", err)
	}
	if _, known := a.Read(c, nil, ""); known {
		t.Error("read before it was verified")
	}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if err := a.Verify(c, func() (func(), error) { entered.Add(1); return func() { left.Add(1) }, nil }); err != nil {
				t.Error(err)
			}
			if got, known := a.Read(c, nil, ""); !known || got.Kind != KindCertificate || got.User.GetName() != "alice" {
				t.Errorf("known %v: %+v", known, got)
			}
		})
	}
	wg.Wait()
	if err := a.Verify(c, func() (func(), error) { return nil, busy }); err != nil {
		t.Errorf("a turn was wanted again: %v", err)
	}
	if clients.Load() != 1 || fronts.Load() != 1 || entered.Load() == 0 || entered.Load() != left.Load() {
		t.Errorf("verified %d and %d times; %d turns taken, %d released", clients.Load(), fronts.Load(), entered.Load(), left.Load())
	}
}

func TestConnFollowsGeneration(t *testing.T) {
	oldCA, newCA := newAuthority("client-ca"), newAuthority("client-ca")
	var generation atomic.Uint64
	verify := oldCA.verify()
	a := newAuthenticator(t, Config{
		VerifyClient: func(peer []*x509.Certificate) ([][]*x509.Certificate, error) { return verify(peer) },
		Generation:   generation.Load,
	})
	was := &Conn{Peer: oldCA.issue(pki.Leaf{CommonName: "was"}, time.Hour)}
	will := &Conn{Peer: newCA.issue(pki.Leaf{CommonName: "will"}, time.Hour)}
	check := func(c *Conn, want Kind) {
		t.Helper()
		if got := read(a, c, nil, ""); got.Kind != want {
			t.Errorf("kind %d, want %d (%v)", got.Kind, want, got.Err)
		}
	}
	check(was, KindCertificate)
	check(will, KindInvalid)
	verify = newCA.verify()
	check(was, KindCertificate) // the generation is unchanged
	generation.Add(1)
	check(was, KindInvalid)
	check(will, KindCertificate)
}

// If the CA changes during a verification, the result of the old one must not be cached.
func TestConnGenerationRace(t *testing.T) {
	ca := newAuthority("client-ca")
	var generation atomic.Uint64
	verify := ca.verify()
	a := newAuthenticator(t, Config{Generation: generation.Load, VerifyClient: func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
		if generation.Add(1) == 1 {
			return verify(peer)
		}
		generation.Add(^uint64(0))
		return nil, errors.New("no longer trusted")
	}})
	c := &Conn{Peer: ca.issue(pki.Leaf{CommonName: "alice"}, time.Hour)}
	read(a, c, nil, "")
	if got := read(a, c, nil, ""); got.Kind != KindInvalid {
		t.Errorf("kind %d: the result outlived its CA", got.Kind)
	}
}

func TestConnDiesAtNotAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name       string
			leaf, when time.Duration
		}{
			{"leaf", time.Minute, time.Minute},
			{"authority", 20 * 24 * time.Hour, 10 * 24 * time.Hour},
		} {
			ca := newAuthority("client-ca") // valid for ten days
			a := newAuthenticator(t, Config{VerifyClient: ca.verify()})
			c := &Conn{Peer: ca.issue(pki.Leaf{CommonName: "alice"}, tt.leaf)}
			read(a, c, nil, "")
			pass(tt.when - 2*time.Second)
			if got := read(a, c, nil, ""); got.Kind != KindCertificate {
				t.Errorf("%s: ended early: %v", tt.name, got.Err)
			}
			pass(3 * time.Second)
			if got := read(a, c, nil, ""); got.Kind != KindInvalid {
				t.Errorf("%s: kind %d after it expired", tt.name, got.Kind)
			}
		}
	})
}

// A certificate that is not valid yet becomes valid without a new connection.
func TestConnRetriesFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority("client-ca")
		ready := time.Now().Add(5 * time.Second)
		verify := ca.verify()
		var n atomic.Int64
		a := newAuthenticator(t, Config{VerifyClient: counted(&n, func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
			if time.Now().Before(ready) {
				return nil, errors.New("not yet valid")
			}
			return verify(peer)
		})})
		c := &Conn{Peer: ca.issue(pki.Leaf{CommonName: "alice"}, time.Hour)}
		for range 10 {
			if got := read(a, c, nil, ""); got.Kind != KindInvalid {
				t.Fatalf("kind %d", got.Kind)
			}
		}
		check.Same(t, 1, n.Load(), "verifications of a failing certificate in a row")
		pass(retryVerify + time.Second)
		if got := read(a, c, nil, ""); got.Kind != KindCertificate {
			t.Errorf("kind %d (%v)", got.Kind, got.Err)
		}
		// The beginning of its validity is awaited exactly, if it is nearer.
		early := &Conn{Peer: []*x509.Certificate{ca.Issue(pki.Leaf{CommonName: "alice", NotBefore: time.Now().Add(time.Minute)}).Certificate}}
		for _, want := range []Kind{KindInvalid, KindCertificate} {
			check.Same(t, want, read(a, early, nil, "").Kind, "kind")
			pass(time.Minute + time.Second)
		}
	})
}

// A missing CA is no reason to refuse a request, as upstream.
func TestNoOpinion(t *testing.T) {
	ca := newAuthority("ca")
	none := func([]*x509.Certificate) ([][]*x509.Certificate, error) { return nil, nil }
	a := newAuthenticator(t, Config{VerifyClient: none, VerifyFrontProxy: none})
	c := &Conn{Peer: ca.issue(pki.Leaf{CommonName: "alice"}, time.Hour)}
	if got := read(a, c, head("x-remote-user", "root"), ""); got.Kind != KindNone {
		t.Errorf("%+v", got)
	}
	if got := read(a, nil, nil, ""); got.Kind != KindNone {
		t.Errorf("%+v", got)
	}
	if !newAuthenticator(t, Config{}).Verified(&Conn{Peer: c.Peer}) {
		t.Error("a certificate is verified although there is no CA")
	}
}

// A value remembered from one request is never used for another value of the next one.
func TestConnRemembersTokens(t *testing.T) {
	a, c := newAuthenticator(t, Config{}), &Conn{}
	long := strings.Repeat("x", maxRemembered)
	fields := []struct{ value, want string }{
		{"Bearer alice", "alice"}, {"Bearer alice", "alice"}, {"Bearer bob", "bob"}, {"", ""}, {"Bearer alice", "alice"}, {"Bearer alic", "alic"},
		{"Basic alice", ""}, {"Basic alice", ""}, {"Bearer " + long, long}, {"Bearer " + long, long}, {"bearer bob", "bob"},
	}
	for _, f := range fields {
		check.Same(t, f.want, read(a, c, head("authorization", f.value), "").Token.Secret(), "token of %.20q", f.value)
		if l := c.last.Load(); len(l.value) > maxRemembered || l.value == "" {
			t.Errorf("a value of %d bytes is remembered", len(l.value))
		}
	}
}
