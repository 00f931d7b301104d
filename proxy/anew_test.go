package proxy

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// Attacks that were tried after the two former lanes had become one; docs/evidence/attacks.md lists
// them ("Tried anew").

// A chain at which verification panics (like CVE-2024-24783 and CVE-2025-58188 in crypto/x509) ends
// its own requests, not the process: over HTTP/2 a goroutine without another recover verifies it.
func TestChainThatPanics(t *testing.T) {
	w := newWorld(t, worldConfig{})
	a := must.Get(authn.New(authn.Config{Anonymous: true, VerifyClient: func(peer []*x509.Certificate) ([][]*x509.Certificate, error) {
		panic("verifying " + peer[0].Subject.CommonName)
	}}))(t)
	w.proxy.cfg.Authn = a
	everyWay(t, func(t *testing.T, proto string) {
		c := w.httpClient(t, proto, w.client.Issue(pki.Leaf{CommonName: "mallory"}))
		for range 2 {
			res, err := c.Do(w.request(t, "GET", "/api/v1/pods", nil))
			if err == nil {
				res.Body.Close()
				check.Same(t, http.StatusInternalServerError, res.StatusCode, "status")
			}
		}
		w.do(t, w.httpClient(t, proto, nil), w.request(t, "GET", "/api/v1/pods", nil)).want(t, http.StatusOK, "another client")
	})
}

// A stranger who invents a token for each request, or uses another address of its network for each
// connection, is still one source when it gives up requests.
func TestStrangersDebtFollows(t *testing.T) {
	for _, tc := range []struct {
		name string
		of   func(i int) (*Decision, *Head)
		owes bool
	}{
		{"made-up tokens", func(i int) (*Decision, *Head) {
			c, _ := newTokens(t).Read(nil, authn.Head{{Name: "authorization", Value: fmt.Sprint("Bearer made-up-", i)}}, "")
			return &Decision{Action: ToLocal, Credentials: c, Pool: authn.PoolUnproven}, &Head{Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
		}, true},
		{"addresses of one /64", func(i int) (*Decision, *Head) {
			return &Decision{Action: ToLocal, Pool: authn.PoolUnproven}, &Head{Remote: fmt.Sprintf("[2001:db8::%x]:1", i+1), RemoteIP: fmt.Sprintf("2001:db8::%x", i+1)}
		}, true},
		{"and who comes without, beside made-up tokens", func(i int) (*Decision, *Head) {
			d := &Decision{Action: ToLocal, Pool: authn.PoolUnproven}
			if i <= 50 {
				d.Credentials, _ = newTokens(t).Read(nil, authn.Head{{Name: "authorization", Value: "Bearer made-up"}}, "")
			}
			return d, &Head{Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
		}, false},
		{"proven tokens", func(i int) (*Decision, *Head) {
			a := newTokens(t)
			c, _ := a.Read(nil, authn.Head{{Name: "authorization", Value: fmt.Sprint("Bearer known-", i)}}, "")
			a.Seen(&c, http.StatusOK)
			pool := a.Pool(&c)
			return &Decision{Action: ToLocal, Credentials: c, Pool: pool}, &Head{Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
		}, false},
		{"users behind one proxy", func(i int) (*Decision, *Head) {
			return &Decision{Action: ToRemote, User: &user.DefaultInfo{Name: fmt.Sprint("user-", i)}}, &Head{Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1"}
		}, false},
	} {
		g := newGivenUp()
		g.burst, g.pause = 50, time.Hour
		for i := range g.burst + 1 {
			d, h := tc.of(i)
			g.ended(d, h, 0)
		}
		d, h := tc.of(g.burst + 1)
		check.Same(t, tc.owes, g.overLimit(d, h), "%s: owes", tc.name)
	}
}

func newTokens(t *testing.T) *authn.Authenticator {
	t.Helper()
	return must.Get(authn.New(authn.Config{}))(t)
}

// While reviews fail, only an earlier GET of /metrics lets a scraper in, if its user has no extra
// that could be a limit.
func TestScraperByAnotherWord(t *testing.T) {
	now := time.Now()
	of := func(verb string, kind authn.Kind, extra map[string][]string) *Decision {
		return &Decision{Request: Request{Verb: verb, Path: metricsPath}, Credentials: authn.Credentials{Kind: kind, User: &user.DefaultInfo{Name: "prometheus", Extra: extra}}}
	}
	scoped := map[string][]string{"scopes": {"none"}}
	for _, tc := range []struct {
		name          string
		known, caller *Decision
		want          bool
	}{
		{"the same", of("get", authn.KindFrontProxy, nil), of("get", authn.KindFrontProxy, nil), true},
		{"a renewed certificate", of("get", authn.KindCertificate, map[string][]string{"credential-id": {"1"}}), of("get", authn.KindCertificate, map[string][]string{"credential-id": {"2"}}), true},
		{"let in for another method", of("post", authn.KindFrontProxy, nil), of("get", authn.KindFrontProxy, nil), false},
		{"by another method", of("get", authn.KindFrontProxy, nil), of("post", authn.KindFrontProxy, nil), false},
		{"with a limit", of("get", authn.KindFrontProxy, nil), of("get", authn.KindFrontProxy, scoped), false},
	} {
		var k scrapers
		k.remember(tc.known, now)
		check.Same(t, tc.want, k.knows(tc.caller, now), "%s: known", tc.name)
	}
}

// A preflight that kube-apiserver answers before it reads a token (--cors-allowed-origins) proves
// no token. Otherwise a stranger's invalid tokens would share the connections of proven ones, and
// get them closed by GOAWAYs.
func TestPreflightProvesNothing(t *testing.T) {
	w := newWorld(t, worldConfig{local: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }})
	everyWay(t, func(t *testing.T, proto string) {
		r := w.by(t, "Bearer bogus", "OPTIONS", "/api/v1/pods", nil)
		r.Header.Set("Origin", "https://console.example.com")
		w.do(t, w.httpClient(t, proto, nil), r)
		c, _ := w.proxy.cfg.Authn.Read(nil, authn.Head{{Name: "authorization", Value: "Bearer bogus"}}, "")
		if w.proxy.cfg.Authn.Proven(c.Token) {
			t.Error("the token is proven")
		}
	})
}

// Java servers cut parameters off a segment before they resolve dots: "..;x" is ".." to them
// (CVE-2020-5902), and would name another object than the authorized one.
func TestDotSegmentsWithParameters(t *testing.T) {
	w := newWorld(t, worldConfig{})
	for target, want := range map[string]int{
		remoteGV + "/namespaces/mine/widgets/..;/..;/theirs/widgets": http.StatusBadRequest,
		remoteGV + "/widgets/..;x=y/secrets":                         http.StatusBadRequest,
		remoteGV + "/widgets/.%2e;a/secrets":                         http.StatusBadRequest,
		remoteGV + "/..;/..;/..;/api/v1/secrets":                     http.StatusBadRequest,
		remoteGV + "/widgets/a;b=c":                                  http.StatusOK,
		remoteGV + "/widgets/a%2Fb;c":                                http.StatusOK,
		remoteGV + "/widgets/...;c":                                  http.StatusOK,
	} {
		everyWay(t, func(t *testing.T, proto string) {
			w.do(t, w.httpClient(t, proto, nil), w.as(t, "bob", "GET", target, nil)).want(t, want, target)
		})
	}
}

// A selector that is too long to parse is authorized as a request for the whole collection, never
// for less.
func TestLongSelectorAsksForMore(t *testing.T) {
	long := strings.Repeat("&x=y", maxSelectors/4)
	for _, q := range []string{"fieldSelector=metadata.name%3Dmine", "fieldSelector=metadata.name%3Dmine&labelSelector=a%3Db", "labelSelector=a%3Db"} {
		for _, method := range []string{"GET", "DELETE"} {
			for _, watch := range []string{"", "&watch=1", "&watch=0"} {
				r := parseRequest(method, remoteGV+"/widgets", q+watch+long)
				if r.Name != "" || r.FieldSelector != "" || r.LabelSelector != "" {
					t.Errorf("%s %s%s: authorized for less: %+v", method, q, watch, r)
				}
				if want := parseRequest(method, remoteGV+"/widgets", strings.TrimPrefix(watch, "&")); r.Verb != want.Verb {
					t.Errorf("%s %s%s: %s, want %s", method, q, watch, r.Verb, want.Verb)
				}
			}
		}
	}
}
