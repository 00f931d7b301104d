package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// frontHost is the host for which requests of a story ask.
const frontHost = "front.example.com"

// records are what a world of a story records, and whether its pools of the local apiserver are shown, by their protocol.
type records struct {
	log, audits lines
	pools       bool
	stop        func()
}

// anew begins with a new world. Options: impersonate, unhealthy, incomplete, redirects (are forwarded), pages, directory, pools, forgetful
// (verdicts are not cached), log, audit=policy file, audit-local=policy file, and annotations of the remote's APIService.
func (s *stage) anew(options []string) {
	c := worldConfig{remoteHTTP1: s.http1, remote: s.act, local: s.act}
	s.records, s.hanging, s.ways, s.also, s.pairs = records{stop: func() {}}, make(chan struct{}, 64), []string{"http/1.1", "h2"}, nil, map[string]*pki.Pair{}
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, _ := request.UserFrom(r.Context())
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"page":%q}`, u.GetName())
	})
	pages, forgetful := false, false
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "impersonate":
			c.impersonate = true
		case "unhealthy":
			c.unhealthy = true
		case "incomplete":
			c.incomplete = true
		case "redirects":
			c.forwardRedirects = true
		case "pages":
			pages = true
		case "directory":
			c.also = func(in *registry.Input) { in.Options.Directory = true }
		case "pools":
			s.pools = true
		case "forgetful":
			forgetful = true
		case "log":
			c.access, s.log, s.stop = newLog(s.t)
		case "audit", "audit-local":
			c.audit, s.audits, s.stop = newAudit(s.t, s.File(s.t, value), key == "audit-local")
		default:
			c.change = annotate(key, strings.ReplaceAll(value, "+", " "))
		}
	}
	if s.world = newWorld(s.t, c); pages {
		s.proxy.cfg.Pages = page
	}
	if forgetful {
		s.proxy.cfg.Authz = must.Get(authz.New(authz.Config{AllowTTL: -1, Review: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "because", nil
		}}))(s.t)
	}
	s.admin = s.guard(s.t, s.proxy, page)
}

// end checks that nothing else was recorded.
func (s *stage) end() {
	if s.world == nil {
		return
	}
	must.Soon(s.t, 10*time.Second, "no request is under way", func() bool { return s.proxy.UnderWay() == 0 && s.proxy.serving.Load() == 0 })
	s.stop()
	for _, out := range []lines{s.log, s.audits} {
		for len(out) > 0 {
			s.t.Errorf("also recorded: %s", <-out)
		}
	}
}

func (s *stage) pool(name string) *backend.Upstream {
	if name == "remote" {
		return s.upstream()
	}
	return s.proxy.cfg.Local.Upstream(map[string]backend.Pool{"unproven": backend.PoolUnproven, "health": backend.PoolHealth}[name])
}

func (s *stage) localIs(how string) {
	if how == "gone" {
		s.local.Close()
	}
	s.proxy.cfg.Local.Report(s.local.Listener.Addr().String(), registry.Unhealthy, "down")
}

// recorded waits for the next record of the kind that is wanted, and describes it.
func (s *stage) recorded(about, want string, q *question) string {
	from, describe := s.log, s.line
	if strings.HasPrefix(want, "| audit") {
		from, describe = s.audits, s.event
	}
	select {
	case text := <-from:
		if strings.Contains(text, "token-of-") {
			s.t.Errorf("%s: a record holds a token: %s", about, text)
		}
		return describe(about, text, q)
	case <-time.After(10 * time.Second):
		s.t.Fatalf("%s: nothing was recorded, want %s", about, want)
	}
	return ""
}

// line describes a line of the access log.
func (s *stage) line(about, text string, q *question) string {
	var all map[string]any
	var at struct {
		Time                time.Time
		Waited, First, Took time.Duration
	}
	must.Do(s.t, json.Unmarshal([]byte(text), &all))
	must.Do(s.t, json.Unmarshal([]byte(text), &at))
	if age := time.Since(at.Time); age < 0 || age > time.Minute || at.Took <= 0 || at.First > at.Took || at.First > 0 && at.First < at.Waited {
		s.t.Errorf("%s: the times are wrong: %s", about, text)
	}
	path, _, _ := strings.Cut(q.target, "?")
	usual := http.Header{
		"level": {"INFO"}, "msg": {"request"}, "method": {q.Method}, "path": {path}, "from": {"127.0.0.1"}, "tls": {"TLS 1.3"}, "proto": {"HTTP/1.1"}, "audit": {q.id},
	}
	if q.way == "h2" {
		usual["proto"] = []string{"HTTP/2.0"}
	}
	if all["tries"] != nil { // HTTP/1.1 does not count them
		usual["tries"] = []string{"1"}
	}
	got := http.Header{}
	for name, value := range all {
		got[name] = []string{fmt.Sprint(value)}
	}
	for name, f := range map[string]*far{"remote": s.remote, "local": s.local} {
		if all["endpoint"] == f.Listener.Addr().String() {
			got["endpoint"] = []string{name}
		}
	}
	for _, name := range []string{"took", "time", "first", "waited", "new"} {
		delete(got, name)
	}
	return "| log" + unusual(got, usual)
}

// event describes an event of the audit log.
func (s *stage) event(about, text string, q *question) string {
	var ev auditv1.Event
	must.Do(s.t, json.Unmarshal([]byte(text), &ev))
	words := []string{"| audit", string(ev.Stage), string(ev.Level), ev.Verb, ev.User.Username}
	if ev.ImpersonatedUser != nil {
		words = append(words, "as", ev.ImpersonatedUser.Username)
	}
	if ev.ResponseStatus != nil {
		words = append(words, fmt.Sprint(ev.ResponseStatus.Code))
	}
	words = append(words, ev.Annotations["authorization.k8s.io/decision"], ev.Annotations["authorization.k8s.io/reason"])
	if ev.RequestURI != q.target {
		words = append(words, ev.RequestURI)
	}
	if ev.RequestObject != nil {
		words = append(words, string(ev.RequestObject.Raw))
	}
	if ev.ResponseObject != nil {
		words = append(words, string(ev.ResponseObject.Raw))
	}
	remote := strings.HasPrefix(q.target, remoteGV)
	if ev.UserAgent != "story" || !slices.Equal(ev.SourceIPs, []string{"127.0.0.1"}) || string(ev.AuditID) != q.id || remote != (ev.Annotations["fairlead.dev/apiservice"] == "v1.remote.example.com") {
		s.t.Errorf("%s: with ID %q: %+v", about, q.id, ev)
	}
	return strings.Join(strings.Fields(strings.Join(words, " ")), " ")
}
