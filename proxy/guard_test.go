package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// While reviews fail, only an earlier GET of /metrics lets a scraper in, if its user has no extra
// that could be a limit. It is forgotten after five minutes, and when it is refused.
func TestWhichScrapersAreKnown(t *testing.T) {
	now := time.Now()
	of := func(name, verb string, kind authn.Kind, extra map[string][]string) *Decision {
		u := &user.DefaultInfo{Name: name, Extra: extra}
		return &Decision{Request: Request{Verb: verb, Path: metricsPath}, Credentials: authn.Credentials{Kind: kind, User: u}}
	}
	scoped, first, second := map[string][]string{"scopes": {"none"}}, map[string][]string{"credential-id": {"1"}}, map[string][]string{"credential-id": {"2"}}
	const front, leaf = authn.KindFrontProxy, authn.KindCertificate
	impersonating := of("a", "get", front, nil)
	impersonating.Credentials.Impersonates = true
	for _, tc := range []struct {
		name          string
		known, caller *Decision
		want          bool
	}{
		{"the same", of("a", "get", front, nil), of("a", "get", front, nil), true},
		{"a renewed certificate", of("a", "get", leaf, first), of("a", "get", leaf, second), true},
		{"a token of an own issuer", of("a", "get", authn.KindIssued, nil), of("a", "get", authn.KindIssued, nil), true},
		{"let in for another method", of("a", "post", front, nil), of("a", "get", front, nil), false},
		{"by another method", of("a", "get", front, nil), of("a", "post", front, nil), false},
		{"with a limit", of("a", "get", front, nil), of("a", "get", front, scoped), false},
		{"as somebody else", of("a", "get", front, nil), impersonating, false},
	} {
		p := must.Get(New(Config{}))(t)
		p.remember(tc.known, nil, now)
		p.remember(tc.caller, errAuthorizing, now)
		check.Same(t, tc.want, p.knows(tc.caller, now.Add(scraperMemory-1)), "%s: known", tc.name)
		check.Same(t, false, p.knows(tc.caller, now.Add(scraperMemory)), "%s: known after five minutes", tc.name)
		p.remember(tc.caller, errUnauthorized, now)
		check.Same(t, false, p.knows(tc.caller, now), "%s: known after a refusal", tc.name)
	}
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
		check.Same(t, false, strings.HasPrefix(string(raw), "HTTP/1.1 200") && (!ok || authorized != served), "%s: authorized for %q, served %q", target, authorized, served)
	}
}
