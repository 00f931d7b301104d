package proxy

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// What was looked up decides the request, whatever the caches have kept of it: nothing is looked up twice.
func TestLookedUpOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		token          string
		users, reviews int64
		want           int // 0: it is forwarded
	}{
		"allowed":                {"token-of-ann", 1, 1, 0},
		"denied":                 {"token-of-nobody", 1, 1, http.StatusForbidden},
		"no user":                {"another", 1, 0, http.StatusUnauthorized},
		"no TokenReview":         {"fails", 1, 0, http.StatusServiceUnavailable},
		"no SubjectAccessReview": {"token-of-fails", 1, 1, http.StatusServiceUnavailable},
	} {
		_, p := thinker(t, worldConfig{})
		var users, reviews atomic.Int64
		p.cfg.Authn = must.Get(authn.New(authn.Config{TokenTTL: -1, Review: func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			users.Add(1)
			name, ok := strings.CutPrefix(token, "token-of-")
			if token == "fails" {
				return nil, false, errors.New("connection refused")
			}
			return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, ok, nil
		}}))(t)
		p.cfg.Authz = must.Get(authz.New(authz.Config{AllowTTL: -1, DenyTTL: -1, Review: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			reviews.Add(1)
			switch a.GetUser().GetName() {
			case "ann":
				return authorizer.DecisionAllow, "", nil
			case "fails":
				return authorizer.DecisionNoOpinion, "", errors.New("connection refused")
			}
			return authorizer.DecisionNoOpinion, "", nil
		}}))(t)
		h := asBob(remoteGV+"/widgets", "")
		h.Fields[0].Value = "Bearer " + tc.token
		d, known := p.decision(t.Context(), h, nil, true)
		if !known || statusOf(d.Err) != tc.want || (d.Action == ToRemote) != (tc.want == 0) {
			t.Errorf("%s: known %v, %v (%v)", name, known, d.Action, d.Err)
		}
		if users.Load() != tc.users || reviews.Load() != tc.reviews {
			t.Errorf("%s: %d TokenReviews and %d SubjectAccessReviews", name, users.Load(), reviews.Load())
		}
	}
}

// A parked request that the engine then does not carry takes its answers along.
func TestLookedUpOnceOffTheEngine(t *testing.T) {
	for _, fails := range []bool{false, true} {
		everyWay(t, func(t *testing.T, proto string) {
			var reviews atomic.Int64
			w := newWorld(t, worldConfig{remoteHTTP1: true, forgetful: true, reviewed: func() error {
				if reviews.Add(1); fails {
					return errors.New("connection refused")
				}
				return nil
			}})
			want := http.StatusOK
			if fails {
				want = http.StatusServiceUnavailable
			}
			w.get(t, proto, remoteGV+"/widgets").want(t, want, "without a cache")
			check.Same(t, 1, reviews.Load(), "SubjectAccessReviews")
		})
	}
}

// An answer is used for its question only.
func TestAnswersToOtherQuestions(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	var d Decision
	must.Do(t, p.settle(t.Context(), &d, asBob(remoteGV+"/widgets", ""), nil, func() error {
		return p.decide(&d, asBob(remoteGV+"/widgets", ""), nil, time.Time{})
	}))
	p.cfg.Authn = must.Get(authn.New(authn.Config{Review: func(context.Context, string) (*authenticator.Response, bool, error) { panic("asked") }}))(t)
	p.cfg.Authz = newTestAuthorizer(t, worldConfig{})
	must.Do(t, p.authenticate(&d))
	must.Do(t, p.authorize(&d))
	d.User = &user.DefaultInfo{Name: "carol"}
	check.Same(t, error(needVerdict), p.authorize(&d), "the verdict on another user")
	h := asBob(remoteGV+"/widgets", "")
	h.Fields[0].Value = "Bearer token-of-carol"
	d.Credentials, _ = p.cfg.Authn.Read(nil, h.Fields, "")
	check.Same(t, error(needUser), p.authenticate(&d), "the user of another token")
}

// CAs that change with every look give no request a place for ever.
func TestLookUpsAreBounded(t *testing.T) {
	w, p := thinker(t, worldConfig{})
	var n, generation atomic.Uint64
	p.cfg.Authn = must.Get(authn.New(authn.Config{
		Generation: func() uint64 { return generation.Add(1) },
		VerifyClient: func([]*x509.Certificate) ([][]*x509.Certificate, error) {
			n.Add(1)
			return nil, nil
		},
	}))(t)
	c := &authn.Conn{Peer: []*x509.Certificate{w.client.Issue(pki.Leaf{CommonName: "alice"}).Certificate}}
	d, known := p.decision(t.Context(), asBob("/api/v1/pods", ""), c, true)
	if !known || d.Action != Refuse || statusOf(d.Err) != http.StatusServiceUnavailable || n.Load() != maxLookUps {
		t.Errorf("known %v, %v (%v), verified %d times", known, d.Action, d.Err, n.Load())
	}
}

// A stranger's reviews count for its address.
func TestReviewsOfAnAddress(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		p.cfg.Authn = must.Get(authn.New(authn.Config{Review: func(ctx context.Context, _ string) (*authenticator.Response, bool, error) {
			asked.Add(1)
			<-ctx.Done()
			return nil, false, ctx.Err()
		}}))(t)
		for i := range 40 {
			h := asBob(remoteGV+"/widgets", "")
			h.Fields[0].Value, h.Remote = fmt.Sprint("Bearer ", i), fmt.Sprint("192.0.2.1:", i+1)
			go p.decision(t.Context(), h, nil, true)
		}
		synctest.Wait()
		check.Same(t, 16, asked.Load(), "reviews at once")
		time.Sleep(time.Minute) // they end with their time limit
	})
}

// statusOf returns the code of a refusal, 0 if there is none.
func statusOf(err error) int {
	var status interface{ Status() metav1.Status }
	if errors.As(err, &status) {
		return int(status.Status().Code)
	}
	return 0
}

// While the cluster's ConfigMap has not been read, a certificate is neither accepted nor refused: a
// 401 would blame the caller. Tokens and requests without credentials are decided as ever.
func TestUnreadNames(t *testing.T) {
	w := newWorld(t, worldConfig{})
	pair := w.client.Issue(pki.Leaf{CommonName: "alice"})
	read := true
	names := func() (*authn.HeaderNames, bool) { return nil, read }
	verify := func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
		return peer[0].Verify(x509.VerifyOptions{Roots: w.client.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	}
	for _, tt := range []struct {
		name         string
		verify       bool // the CA is in a file
		cert         bool
		path         string
		fields       []hpack.HeaderField
		unread, then int
	}{
		{"certificate, local, CA in the ConfigMap", false, true, "/api/v1/pods", nil, 503, 0},
		{"certificate, local, CA in a file", true, true, "/api/v1/pods", nil, 503, 0},
		{"certificate, remote", false, true, remoteGV + "/widgets", nil, 503, 401},
		{"token, local", false, true, "/api/v1/pods", with("t"), 0, 0},
		{"nothing, local", false, false, "/api/v1/pods", nil, 0, 0},
		{"nothing, remote", false, false, remoteGV + "/widgets", nil, 401, 401},
		{"health", false, true, "/readyz", nil, 0, 0},
	} {
		c := authn.Config{Target: names}
		if tt.verify {
			c.VerifyClient = verify
		}
		conn := &authn.Conn{}
		if tt.cert {
			conn.Peer = []*x509.Certificate{pair.Certificate}
		}
		w.proxy.cfg.Authn = must.Get(authn.New(c))(t)
		for _, read = range []bool{false, true} {
			want := tt.unread
			if read {
				want = tt.then
			}
			d := &Decision{}
			w.proxy.decideOffLoop(t.Context(), d, of(http.MethodGet, tt.path, "", tt.fields), conn)
			check.Same(t, want, statusOf(d.Err), "%s, read: %v: status", tt.name, read)
		}
	}
}
