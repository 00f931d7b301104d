package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/internal/metric"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
	"github.com/fairlead-proxy/fairlead/tests/servers/otlp"
)

// frontHost is the host for which requests of a story ask.
const frontHost = "front.example.com"

// records are what a world of a story records, and whether its pools of the local apiserver are
// shown, by their protocol.
type records struct {
	log, audits         logbook.Lines
	spans               func() []otlp.Span
	seen                int // spans
	pools               bool
	reviews             *atomic.Int64          // SubjectAccessReviews
	tokens              *atomic.Int64          // TokenReviews
	failure             *atomic.Pointer[error] // of all reviews
	metrics             *prometheus.Registry   // of the backends
	filled              int                    // refusals of a busy backend when the last pool was full
	stopLog, stopAudits func()
}

// neverMatches is a policy whose rules need every caller's user, and match none: nothing may change.
const neverMatches = `apiVersion: fairlead.dev/v1
kind: Policy
rules:
- {name: nobody, match: {subjects: [{kind: User, user: {name: nobody-has-this-name}}]}, action: Deny}
- {name: rare, match: {subjects: [{kind: Group, group: {name: no-such-group}}]}, action: Rate, perSecond: 1}
`

// anew begins with a new world. Options: impersonate or impersonate=prefixes of groups, unhealthy, incomplete,
// redirects, which are forwarded, pages, directory, pools, forgetful, where verdicts are not cached, or with
// forgetful=tokens the users of tokens, either, unread=names or unread=ca, what the ConfigMap has that nobody has read
// yet, browsers, whose pages of one origin may read answers, burst, of two requests that are given up, trace=samples of
// a million, log, audit=policy and audit-local=policy, which are files, unruled, without the policy of a ruled stage,
// and annotations of the remote's APIService.
func (s *stage) anew(options []string) {
	reviews, tokens, failure, none := &atomic.Int64{}, &atomic.Int64{}, &atomic.Pointer[error]{}, error(nil)
	failure.Store(&none)
	s.records = records{metrics: prometheus.NewRegistry(), reviews: reviews, tokens: tokens, failure: failure, stopLog: func() {}, stopAudits: func() {}}
	s.ways, s.also = []string{"http/1.1", "h2"}, nil
	clear(s.pairs)
	c := worldConfig{remoteHTTP1: s.http1, remote: s.act, local: s.act, pools: backend.Config{Sinks: metric.Sinks{Metrics: s.metrics}}}
	c.tokenReviewed = func() error { tokens.Add(1); return *failure.Load() }
	c.reviewed = func() error { reviews.Add(1); return *failure.Load() }
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := ""
		if u, ok := request.UserFrom(r.Context()); ok { // a known scraper has none
			name = u.GetName()
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"page":%q}`, name)
	})
	if s.ruled {
		c.also = func(in *registry.Input) { scene.SetPolicy(s.t, in, "ruled.yaml", neverMatches) }
	}
	burst := givenUpBurst
	audit := func(v string) { c.Audit, s.audits, s.stopAudits = newAudit(s.t, s.File(s.t, v)) }
	s.each(options, map[string]func(v string){
		"impersonate": func(v string) {
			c.impersonate = true
			if v != "" {
				c.groups = strings.Split(v, ",")
			}
		},
		"unhealthy":  func(string) { c.unhealthy = true },
		"incomplete": func(string) { c.incomplete = true },
		"redirects":  func(string) { c.ForwardRedirects = true },
		"pages":      func(string) { c.Pages = page },
		"behind": func(string) {
			c.Behind = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"page":"behind"}`)
			})
			c.Documents = page
		},
		"directory": func(string) { c.also = func(in *registry.Input) { in.Options.Directory = true } },
		"policy": func(v string) {
			before := c.also
			c.also = func(in *registry.Input) {
				if before != nil {
					before(in)
				}
				scene.SetPolicy(s.t, in, v, s.File(s.t, v))
			}
		},
		"pools":     func(string) { s.pools = true },
		"unruled":   func(string) { c.also = nil },
		"forgetful": func(v string) { c.forgetful, c.forgetsTokens = true, v == "tokens" },
		"unread":    func(v string) { c.unread = v },
		"browsers": func(string) {
			c.AllowedOrigins, c.HSTS = []string{`//mine\.example\.com(:|$)`}, []string{"max-age=1", "preload"}
		},
		"burst": func(string) { burst = 2 },
		"trace": func(v string) { c.Tracer, s.spans = newTracer(s.t, v) },
		"log":   func(string) { c.AccessLog, s.log, s.stopLog = newLog(s.t) },
		"audit": audit,
		"audit-local": func(v string) {
			audit(v)
			c.AuditLocal = true
		},
		"": func(option string) {
			name, value, _ := strings.Cut(option, "=")
			must.Be(s.t, value != "", "no option %s", option)
			c.change = annotate(name, strings.ReplaceAll(value, "+", " "))
		},
	})
	s.world = newWorld(s.t, c)
	s.proxy.givenUp.burst, s.proxy.givenUp.pause = burst, time.Hour
	s.admin = s.guard(s.t, s.proxy, page)
}

func (s *stage) end() {
	if s.world == nil {
		return
	}
	must.Soon(s.t, 10*time.Second, "no request is under way", func() bool { return s.proxy.UnderWay() == 0 && s.proxy.serving.Load() == 0 })
	s.stopLog()
	s.stopAudits()
	check.Same(s.t, true, s.spans == nil || len(s.spans()) == s.seen, "%d spans, and no more", s.seen)
	for _, out := range []logbook.Lines{s.log, s.audits} {
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

// full takes all places of a pool, or those of requests that wait for a look-up.
func (s *stage) full(name string, long bool) {
	s.settled(s.t) // or an earlier request gives its place back afterwards
	if name == "parked" {
		s.proxy.desk.parked = bound.NewApart(1, 1)
		return
	}
	fillUp(s.t, s.pool(name), long)
	s.filled = s.busy()
}

func (s *stage) busy() int { return int(rejections(s.t, s.metrics)["inflight"]) }

func (s *stage) localIs(how string) {
	switch how {
	case "gone":
		s.local.Close()
	case "restarts":
		s.localDown.Store(true)
		s.local.CloseClientConnections()
		time.AfterFunc(700*time.Millisecond, func() { s.localDown.Store(false) })
		return
	}
	s.proxy.cfg.Local.Report(registry.Report{Endpoint: registry.Endpoint{Address: s.local.Listener.Addr().String(), Health: registry.Unhealthy, Message: "down"}})
}

func (s *stage) givenUp(who string) {
	from := bound.Source{User: who}
	if net.ParseIP(who) != nil {
		from = bound.Source{Address: who}
	}
	s.proxy.givenUp.charge(account{Source: from}, 10*givenUpBurst)
}

func (s *stage) deaf(busy bool) {
	err := errors.New("dial tcp 192.0.2.1:6443: connection refused")
	if busy {
		err = bound.ErrFull
	}
	s.failure.Store(&err)
}

func (s *stage) count(one *step) {
	got := map[string]int{"rejected": int(s.rejections.Load()), "reviews": int(s.reviews.Load()), "tokens": int(s.tokens.Load()), "refusals": int(testutil.ToFloat64(s.proxy.givenUp.refused)), "busy": s.busy() - s.filled}
	n, known := got[one.words[1]]
	check.Same(s.t, one.words[2]+" true", fmt.Sprint(n, " ", known), "%s: %s", one.at, one.words[1])
}
