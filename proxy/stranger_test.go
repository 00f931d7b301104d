package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/internal/bound"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// counted is a context that counts what waits for its end.
type counted struct {
	context.Context
	waiting int
}

func (c *counted) AfterFunc(func()) func() bool {
	c.waiting++
	return func() bool { c.waiting--; return true }
}

// A request of the unproven pool has a time limit, any other has none here. What waits for it ends with it.
func TestStrangersTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Proxy{}
		p.ending, p.end = context.WithCancel(t.Context())
		for name, tc := range map[string]struct {
			d    Decision
			want time.Duration
		}{
			"short":                {Decision{Action: ToLocal, Pool: authn.PoolUnproven}, strangerTime},
			"long-running":         {Decision{Action: ToLocal, Pool: authn.PoolUnproven, LongRunning: true}, strangerWatch},
			"proven":               {Decision{Action: ToLocal, Pool: authn.PoolProven}, 0},
			"proven, long-running": {Decision{Action: ToLocal, Pool: authn.PoolProven, LongRunning: true}, 0},
			"remote":               {Decision{Action: ToRemote}, 0},
		} {
			parent := &counted{Context: t.Context()}
			r, end := (&exchange{p: p, decision: tc.d}).within(httptest.NewRequestWithContext(parent, http.MethodGet, "/", nil))
			until, limited := r.Context().Deadline()
			check.Same(t, true, limited == (tc.want > 0) && (!limited || time.Until(until) == tc.want), "%s: %v, limited %v", name, time.Until(until), limited)
			end()
			check.Same(t, 0, parent.waiting, "%s: what still waits", name)
			check.Same(t, limited || tc.d.LongRunning, r.Context().Err() != nil, "%s: over", name)
		}
	})
}

// Only a long-running request with an unproven token asks whether the local apiserver accepts it.
func TestWhatIsProven(t *testing.T) {
	hangs := make(chan struct{})
	w := newWorld(t, worldConfig{local: func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer hangs" {
			<-hangs
		}
	}})
	defer close(hangs)
	unproven := func(token string) Decision {
		c, _ := w.proxy.cfg.Authn.Read(nil, authn.Head{{Name: "authorization", Value: "Bearer " + token}}, "", time.Time{})
		return Decision{Action: ToLocal, Pool: authn.PoolUnproven, LongRunning: true, Credentials: c}
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, tc := range []struct {
		name, token string
		change      func(*Decision)
		ctx         context.Context
		requests    int
		err         bool
		want        authn.Pool
	}{
		{"remote", "a", func(d *Decision) { d.Action = ToRemote }, t.Context(), 0, false, authn.PoolUnproven},
		{"proven", "a", func(d *Decision) { d.Pool = authn.PoolProven }, t.Context(), 0, false, authn.PoolProven},
		{"short", "a", func(d *Decision) { d.LongRunning = false }, t.Context(), 0, false, authn.PoolUnproven},
		{"a watch", "a", func(*Decision) {}, t.Context(), 1, false, authn.PoolProven},
		{"no field's value", "a\nb", func(*Decision) {}, t.Context(), 0, false, authn.PoolUnproven},
		{"a long one", strings.Repeat("a", maxProven+1), func(*Decision) {}, t.Context(), 0, false, authn.PoolUnproven},
		{"the client has gone", "hangs", func(*Decision) {}, gone, 0, true, authn.PoolUnproven},
		{"the apiserver is away", "b", func(*Decision) { w.localDown.Store(true); w.local.CloseClientConnections() }, t.Context(), 0, true, authn.PoolUnproven},
	} {
		d, before := unproven(tc.token), w.local.count()
		tc.change(&d)
		x := &exchange{p: w.proxy, decision: d}
		err := x.prove(tc.ctx, bound.Stranger("192.0.2.1:1"))
		n := w.local.count() - before
		check.Same(t, true, (err != nil) == tc.err && (tc.err || n == tc.requests) && x.decision.Pool == tc.want, "%s: %d requests, pool %v, %v", tc.name, n, x.decision.Pool, err)
	}
}

// A body that ends before its announced length is the client's fault, and gets an answer.
func TestBodyThatEndsEarly(t *testing.T) {
	w := newWorld(t, worldConfig{})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/pods", http.NoBody)
	r.ContentLength = 5
	r.Body = http.MaxBytesReader(nil, http.NoBody, 1)
	x := &exchange{p: w.proxy, head: headOf(r, time.Now()), decision: Decision{Action: ToLocal}, upstream: w.proxy.cfg.Local.Upstream(backend.PoolUnproven)}
	check.Same(t, true, check.Err(x.hold(httptest.NewRecorder(), r, bound.Stranger("192.0.2.1:1"))) != nil, "a part is not held as the whole")
}

const byUser = "{apiVersion: fairlead.dev/v1, kind: Policy, rules: [{name: mallory, match: {subjects: [{kind: User, user: {name: mallory}}]}, action: Deny}]}"

// While no TokenReview is answered, requests with new tokens pass after a moment, as many of one connection as may wait
// at once, and are counted. While some are answered, be it for a remote, nobody becomes unknown by a flood of them: who
// finds its own queue full gets 429.
func TestUnknownUsers(t *testing.T) {
	offLoop := func(p *Proxy, r *exchange) (passes bool) {
		p.decideOffLoop(p.ending, &r.decision, r.head, &r.front.conn)
		return r.decision.Action != Refuse
	}
	parked := func(p *Proxy, r *exchange) (passes bool) {
		err := p.decide(&r.decision, r.head, &r.front.conn, r.head.Arrived)
		check.Same(t, true, err == needBearer, "a token is asked for: %v", err) //nolint:errorlint // nobody wraps it
		return p.frames.decideParked(r).Answer == nil                           // else it is refused
	}
	for name, tc := range map[string]struct {
		some   bool // reviews are answered
		tokens int
		decide func(p *Proxy, r *exchange) (passes bool)
	}{
		"none over HTTP/1.1": {false, 2000, offLoop}, "none over HTTP/2": {false, 1500, parked}, "some over HTTP/1.1": {true, 2000, offLoop}, "some over HTTP/2": {true, 2000, parked},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reviews, refused atomic.Int64
				answered := make(chan struct{})
				_, p := thinker(t, worldConfig{
					tokenReviewed: func() error {
						if reviews.Add(1) > 1 || !tc.some {
							<-answered
						}
						return nil
					},
					also: func(in *registry.Input) { scene.SetPolicy(t, in, "p.yaml", byUser) },
				})
				p.Frames(h2.Config{})
				ask := func(path string, i int, decide func(*Proxy, *exchange) bool) (passes bool, took time.Duration) {
					r := p.frames.requests.Get().(*exchange) //nolint:forcetypeassert // as decide
					*r.head = *of(http.MethodGet, path, "", with(fmt.Sprint("token-of-", i)))
					r.head.Arrived, r.front = time.Now(), new(slot)
					arrived := time.Now()
					return decide(p, r), time.Since(arrived)
				}
				if tc.some {
					passes, _ := ask(remoteGV+"/widgets", tc.tokens, offLoop)
					check.Same(t, true, passes, "the first request passes")
				}
				var all sync.WaitGroup
				for i := range tc.tokens {
					all.Go(func() {
						switch passes, took := ask("/api/v1/pods", i, tc.decide); {
						case tc.some && !passes:
							refused.Add(1)
						case !passes, !tc.some && took > callerTime, tc.some && took < callerTime:
							t.Errorf("request %d passes: %v, after %v", i, passes, took)
						}
					})
				}
				all.Wait()
				check.Same(t, true, tc.some || testutil.ToFloat64(p.metrics.unknown) == float64(tc.tokens), "%v requests by users who are not known", testutil.ToFloat64(p.metrics.unknown))
				check.Same(t, tc.some, refused.Load() > 0, "a queue was full")
				close(answered)
			})
		})
	}
}
