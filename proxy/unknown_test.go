package proxy

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead-proxy/fairlead/proxy/h2"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

const byUser = `
apiVersion: fairlead.dev/v1
kind: Policy
rules:
- name: mallory
  match: {subjects: [{kind: User, user: {name: mallory}}]}
  action: Deny
`

// While no TokenReview is answered, requests with new tokens pass after a moment, however many of
// one connection there are at once, and are counted.
func TestUnknownUsers(t *testing.T) {
	const tokens = 2000
	for name, decide := range map[string]func(p *Proxy, r *exchange) (passes bool){
		"over HTTP/1.1": func(p *Proxy, r *exchange) bool {
			p.decideOffLoop(p.ending, &r.decision, r.head, &r.front.conn)
			return r.decision.Action == ToLocal
		},
		"over HTTP/2": func(p *Proxy, r *exchange) bool {
			if p.decide(&r.decision, r.head, &r.front.conn, r.head.Arrived) != needBearer { //nolint:errorlint // nobody wraps it
				t.Error("no token is asked for")
			}
			return p.frames.decideParked(r).Answer == nil // else it is refused
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answered := make(chan struct{})
				_, p := thinker(t, worldConfig{
					tokenReviewed: func() error { <-answered; return nil },
					also:          func(in *registry.Input) { scene.SetPolicy(t, in, "p.yaml", byUser) },
				})
				p.Frames(h2.Config{})
				var all sync.WaitGroup
				for i := range tokens {
					r := p.frames.requests.Get().(*exchange) //nolint:forcetypeassert // as decide
					fields := []hpack.HeaderField{{Name: "authorization", Value: fmt.Sprint("Bearer token-of-", i)}}
					*r.head = Head{Head: wire.Head{Method: http.MethodGet, Path: "/api/v1/pods", Fields: fields}, Remote: "192.0.2.1:1", RemoteIP: "192.0.2.1", Arrived: time.Now()}
					r.front = new(slot)
					arrived := time.Now()
					all.Go(func() {
						if passes, took := decide(p, r), time.Since(arrived); !passes || took > callerTime {
							t.Errorf("request %d passes: %v, after %v", i, passes, took)
						}
					})
				}
				all.Wait()
				if n := testutil.ToFloat64(p.metrics.unknown); n != tokens {
					t.Errorf("%v requests by users who are not known", n)
				}
				close(answered)
			})
		})
	}
}
