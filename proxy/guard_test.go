package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/bound"
	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// While the local apiserver is unreachable, /metrics is still served to recently authorized
// callers, and to no others.
func TestKnownScrapers(t *testing.T) {
	w := newWorld(t, worldConfig{})
	var asked, deaf atomic.Bool
	may := must.Get(authz.New(authz.Config{AllowTTL: -1, DenyTTL: -1, Review: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		asked.Store(true)
		if deaf.Load() {
			return authorizer.DecisionNoOpinion, "", errors.New("nobody answers")
		}
		return authorizer.DecisionAllow, "", nil
	}}))(t)
	p := must.Get(New(Config{Table: w.table, Authn: w.authenticator(t, worldConfig{}), Authz: may, Backends: w.proxy.cfg.Backends, Local: w.proxy.cfg.Local}))(t)
	s := w.guard(t, p, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fairlead_up 1") })
	prometheus, grafana := w.client.Issue(pki.Leaf{CommonName: "prometheus"}), w.client.Issue(pki.Leaf{CommonName: "grafana"})
	scrape := func(path string, pair *pki.Pair, token string) int {
		t.Helper()
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil))(t)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		got := w.do(t, w.httpClient(t, "http/1.1", pair), r)
		if got.status == http.StatusOK && got.body != "fairlead_up 1" {
			t.Errorf("%s: %q", path, got.body)
		}
		return got.status
	}
	for _, known := range []int{scrape("/metrics", prometheus, ""), scrape("/metrics", nil, "token-of-agent"), scrape("/status", grafana, "")} {
		if known != http.StatusOK {
			t.Fatalf("status %d while the local apiserver answers", known)
		}
	}
	deaf.Store(true)
	check.Same(t, http.StatusServiceUnavailable, scrape("/metrics", prometheus, ""),
		"status while the local apiserver is healthy and its review fails")
	w.local.Close()
	p.cfg.Local.Report(w.local.Listener.Addr().String(), registry.Unhealthy, "connection refused")
	asked.Store(false)
	for _, tc := range []struct {
		name, path string
		pair       *pki.Pair
		token      string
		want       int
	}{
		{"known by certificate", "/metrics", prometheus, "", 200},
		{"known by token", "/metrics", nil, "token-of-agent", 200},
		{"known, but not for metrics", "/metrics", grafana, "", 503},
		{"known, another page", "/status", prometheus, "", 503},
		{"another token", "/metrics", nil, "token-of-other", 503},
		{"nothing", "/metrics", nil, "", 401},
	} {
		t.Run(tc.name, func(t *testing.T) {
			asked.Store(false)
			check.Same(t, tc.want, scrape(tc.path, tc.pair, tc.token), "status")
			if tc.want == http.StatusOK && asked.Load() {
				t.Error("a known scraper waits for an apiserver that is down")
			}
		})
	}
}

func TestScrapersAreForgotten(t *testing.T) {
	var k scrapers
	now := time.Now()
	scrape := func(name string) *Decision {
		return &Decision{Request: Request{Verb: "get", Path: metricsPath}, Credentials: authn.Credentials{Kind: authn.KindCertificate, User: &user.DefaultInfo{Name: name}}}
	}
	d := scrape("prometheus")
	k.remember(d, now)
	if !k.knows(d, now.Add(scraperMemory-1)) || k.knows(d, now.Add(scraperMemory)) {
		t.Error("a scraper is not remembered for exactly five minutes")
	}
	for i := range 2 * maxScrapers {
		k.remember(scrape(string(rune('a'+i))), now)
	}
	check.Same(t, maxScrapers, len(k.known), "scrapers remembered")
	k.remember(d, now.Add(scraperMemory))
	check.Same(t, 1, len(k.known), "scrapers remembered after five minutes, only the new one")
	d.Credentials.Impersonates = true
	if k.knows(d, now) {
		t.Error("a caller that impersonates is remembered")
	}
}

// A client whose certificates get no turn gets no page. Its reviews count for its address.
func TestGuardWithoutATurn(t *testing.T) {
	w := newWorld(t, worldConfig{})
	w.proxy.desk.chains = bound.NewQueue(1, 1)
	guarded := w.guard(t, w.proxy, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, exchangeOf(r.Context()).decision.Credentials.From.Address)
	})
	ask := func() answer {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, guarded.URL, nil))(t)
		return w.do(t, w.httpClient(t, "http/1.1", w.client.Issue(pki.Leaf{CommonName: "alice"})), r)
	}
	if got := ask(); got.status != http.StatusOK || got.body != "127.0.0.1" {
		t.Errorf("%d, counts for %q", got.status, got.body)
	}
	leave := must.Get(w.proxy.desk.chains.Enter(t.Context(), bound.Stranger("192.0.2.2:1")))(t)
	defer leave()
	ask().want(t, http.StatusTooManyRequests, "without a turn")
}

// The page served is the authorized one, however the request line is written.
func TestGuardServesWhatItAuthorizes(t *testing.T) {
	w := newWorld(t, worldConfig{})
	guarded := w.guard(t, w.proxy, func(rw http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(rw, "%s %s", exchangeOf(r.Context()).decision.Request.Path, r.URL.Path)
	})
	for _, target := range []string{"/debug/pprof/heap", "http:/debug/pprof/heap", "http://x/debug/pprof/heap", "/debug%2fpprof/heap", "//debug/pprof", "x:y?z", "http://x?/debug"} {
		conn := w.dial(t, guarded, w.client.Issue(pki.Leaf{CommonName: "alice"}))
		must.Get(fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", target))(t)
		raw := must.Get(io.ReadAll(conn))(t)
		_, body, _ := strings.Cut(string(raw), "\r\n\r\n")
		authorized, served, ok := strings.Cut(body, " ")
		if strings.HasPrefix(string(raw), "HTTP/1.1 200") && (!ok || authorized != served) {
			t.Errorf("%s: authorized for %q, served %q", target, authorized, served)
		}
	}
}

// A caller who asks to be another user gets the same answer, and learns no address.
func TestNobodyAuthorizesImpersonation(t *testing.T) {
	_, p := thinker(t, worldConfig{})
	for failure, want := range map[error]int{errors.New("dial tcp 192.0.2.1:6443: connection refused"): 503, bound.ErrFull: 429} {
		p.cfg.Authz = must.Get(authz.New(authz.Config{Review: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", failure
		}}))(t)
		d, _ := p.decision(t.Context(), asBob(remoteGV, ""), nil, true)
		r := p.asUser(httptest.NewRequestWithContext(t.Context(), http.MethodGet, remoteGV, nil), &exchange{decision: d})
		r.Header.Set("Impersonate-User", "jane")
		w := httptest.NewRecorder()
		p.impersonation(http.NotFoundHandler()).ServeHTTP(w, r)
		if w.Code != want || w.Header().Get("Retry-After") != "1" || strings.Contains(w.Body.String(), failure.Error()) {
			t.Errorf("%v: %d, Retry-After %q: %s", failure, w.Code, w.Header().Get("Retry-After"), w.Body)
		}
	}
}
