package proxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/h2/engine"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/registry/policy"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

const held = `
apiVersion: fairlead.dev/v1
kind: Policy
rules:
- {name: tried, match: {subjects: [{kind: Group, group: {name: "*"}}]}, action: InFlight, max: 10, shared: true, dryRun: true}
- {name: all, match: {subjects: [{kind: Group, group: {name: "*"}}]}, action: InFlight, max: 15, shared: true}
`

// Requests that have waited for a look-up come to a limit after younger ones, and fill it no second time.
func TestRateOfLateRequests(t *testing.T) {
	g := policy.NewGates(nil)
	rule := policy.AccessRule{Name: "r", UserAgents: []string{"*"}, Action: policy.Rate, PerSecond: 10}
	check.Same(t, 0, len(g.Add(&rule, "here", nil, false)), "faults of the rule")
	g.Compile()
	begin, passed := time.Now(), 0
	for i := range 200 {
		x := &exchange{head: &Head{Remote: "192.0.2.1:1", Arrived: begin.Add(-callerTime * time.Duration(i%2))}}
		if x.decision.Rule = g.All()[0]; x.admit() == nil {
			passed++
		}
	}
	check.Within(t, 0, 11+int(10*time.Since(begin).Seconds()), passed, "requests that passed")
}

// A request gives its place of a rule back, however it ends: answered, refused by the rule or by the next limit, broken
// off by its backend or its client at any moment, after an upgrade, as a watch, or while it waits for its user.
func TestPlacesOfRulesComeBack(t *testing.T) {
	far := (&stage{t: t}).act
	for _, http1 := range []bool{false, true} {
		w := newWorld(t, worldConfig{
			local: far, remote: far, remoteHTTP1: http1, change: annotate("max-inflight", "4"),
			tokenReviewed: func() error {
				if rand.IntN(2) == 0 {
					slow, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(20))*time.Millisecond)
					defer cancel()
					<-slow.Done()
				}
				return nil
			},
			also: func(in *registry.Input) { scene.SetPolicy(t, in, "p.yaml", held) },
		})
		clients := map[string]*http.Client{"http/1.1": w.httpClient(t, "http/1.1", nil), "h2": w.httpClient(t, "h2", nil)}
		var all sync.WaitGroup
		var mu sync.Mutex
		ends := make(map[string]int)
		rules := w.table().Rules().All()
		seen := func() bool {
			said := ends["200"] > 0 && ends["none"] > 0 && ends["429"] > 0 && ends["101"] > 0
			return said && !slices.ContainsFunc(rules, func(g *policy.Gate) bool {
				refused, passed := g.Count()
				return passed < 100 || refused == 0
			})
		}
		for i := 0; i < 600 || i%60 > 0 || !seen() && i < 6000; i++ { // upgrades are few where all compete
			proto := []string{"http/1.1", "h2"}[i%2]
			all.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(i), 1))
				of := func(s ...string) string { return s[rnd.IntN(len(s))] }
				act, stays := of("do=cut", "do=half", "do=hang", "do=stream&watch=1", "do=hang&watch=1", "do=ok", "do=ok"), rnd.IntN(2) == 0
				leaves := time.Duration(rnd.IntN(600)) * time.Millisecond
				if stays && !strings.Contains(act, "hang") && !strings.Contains(act, "stream") {
					leaves = time.Minute // waits for its answer, also on a busy machine
				}
				ctx, cancel := context.WithTimeout(t.Context(), leaves)
				defer cancel()
				target := of("/api/v1/pods", remoteGV+"/widgets", remoteGV+"/widgets", "/apis/apps/v1/deployments", "/version", "/apis/none.example.com/v1/x")
				r := w.request(t, of("GET", "GET", "POST"), target+"?"+act, nil).WithContext(ctx)
				r.Header.Set("Authorization", fmt.Sprint("Bearer token-of-", rnd.IntN(300)))
				if of("", "", "", "impersonates") != "" {
					r.Header.Set("Impersonate-User", "jane")
				}
				if proto == "http/1.1" && of("", "", "", "upgrades") != "" {
					r.Header.Set("Connection", "Upgrade")
					r.Header.Set("Upgrade", "websocket")
				}
				end := "none"
				if res, err := clients[proto].Do(r); err == nil {
					end = fmt.Sprint(res.StatusCode)
					if res.StatusCode != http.StatusSwitchingProtocols {
						_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, int64(rnd.IntN(4))))
					}
					_ = res.Body.Close()
				}
				mu.Lock()
				defer mu.Unlock()
				ends[end]++
			})
			if i%60 == 59 {
				all.Wait()
			}
		}
		all.Wait()
		must.Soon(t, 20*time.Second, "no request is under way", func() bool { return w.proxy.UnderWay() == 0 && w.proxy.serving.Load() == 0 && w.proxy.Sessions() == 0 })
		check.Same(t, true, seen(), "the rounds say enough: %v", ends)
		for _, g := range rules {
			must.Soon(t, 10*time.Second, "all places of rule "+g.Name+" come back", func() bool {
				var taken []bound.Place
				for range g.Max + 1 {
					if p, _, ok := g.Enter(bound.Source{}, time.Now()); ok {
						taken = append(taken, p)
					}
				}
				for i := range taken {
					taken[i].Leave()
				}
				return len(taken) == int(g.Max)
			})
		}
	}
}

// A request that leaves the engine after a look-up has one line: of its handler, or of its stream that has ended.
// Then no rule was asked.
func TestResetWhileParked(t *testing.T) {
	const rules = `apiVersion: fairlead.dev/v1
kind: Policy
rules:
- {name: tried, match: {nonResourceRules: [{verbs: ["*"], nonResourceURLs: ["*"]}]}, action: Rate, perSecond: 100, dryRun: true}
- {name: all, match: {nonResourceRules: [{verbs: ["*"], nonResourceURLs: ["*"]}]}, action: Rate, perSecond: 100}
`
	for first, want := range map[string]string{"handler": `"status":404`, "client-reset": `"status":499`, "drain": `"status":503`} {
		access, seen, stop := newLog(t)
		events, stages, flush := newAudit(t, "rules: [{level: Metadata}]")
		w := newWorld(t, worldConfig{
			Config: Config{AccessLog: access, Audit: events, Documents: http.NotFoundHandler()},
			also:   func(in *registry.Input) { scene.SetPolicy(t, in, "p.yaml", rules) },
		})
		plan := w.planOf(t, &asBob("/apis", "").Head)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/apis", nil)
		r.Header.Set("Authorization", "Bearer token-of-bob")
		if first == "handler" {
			plan.Serve.ServeHTTP(httptest.NewRecorder(), r)
		}
		plan.Done(engine.Outcome{Reason: engine.Reason(first), Duration: time.Second})
		plan.Serve.ServeHTTP(httptest.NewRecorder(), r)
		stop()
		flush()
		check.Same(t, 1, len(seen), "lines, first its %s", first)
		check.Same(t, 2, len(stages), "stages, first its %s", first)
		line := <-seen
		check.Has(t, line, want, `"user":"bob"`)
		check.Same(t, first == "handler", strings.Contains(line, `"rule":"all"`), "the rule was asked: %s", line)
		check.Same(t, false, strings.Contains(line, "dryrun"), "a dry run would have refused: %s", line)
	}
}
