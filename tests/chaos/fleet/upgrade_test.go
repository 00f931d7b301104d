//go:build e2e

package fleet

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
)

const from = "v1.36.3" // the release before the pinned one

// toll is what an upgrade costs clients.
type toll struct {
	Failed   int   // requests
	Lists    int64 // informers that had to list again
	TooLarge int64 // their waits for a resource version that a server has not seen yet
	Orphans  int   // objects in namespaces that are gone
	Gone     int   // discovery documents that lack what both releases serve
}

// TestUpgrade takes a control plane of three from one release to the next and back, kills a member
// of etcd, replaces each Fairlead and its certificate, while namespaces with claims come and go.
// With Fairleads it costs no more than without.
func TestUpgrade(t *testing.T) {
	newer := suite.Tool(t, "kube-apiserver")
	t.Setenv("FAIRLEAD_KUBERNETES", from) // also the clients'
	older := suite.Tool(t, "kube-apiserver")
	w := newWorld(t, cluster.Config{APIServers: 3, Members: 3}, 6)
	directly := toll{}
	for _, name := range []string{"direct", "Fairlead"} {
		t.Run(name, func(t *testing.T) {
			servers, fairleads := w.servers(), []*cluster.Part(nil)
			if name == "Fairlead" {
				args := []string{"--shutdown-delay-duration=3s"}
				for _, s := range servers {
					args = append(args, "--local-apiserver="+s.URL)
				}
				for i := range servers {
					f := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: w.bin, Name: fmt.Sprintf("fairlead-%d", i), Args: args}))(t)
					defer f.Part.Kill()
					servers[i], fairleads = f.Endpoint, append(fairleads, f.Part)
				}
			}
			w.point(t, servers...)
			got := w.upgrade(t, older, newer, fairleads)
			t.Logf("%s: %+v", name, got)
			if name == "direct" {
				directly = got
			} else if got.Failed > directly.Failed || got.Lists > directly.Lists || got.TooLarge > directly.TooLarge || got.Orphans > 0 || got.Gone > 0 {
				t.Errorf("with Fairleads %+v, directly %+v", got, directly)
			}
		})
	}
}

func (w *world) upgrade(t *testing.T, older, newer string, fairleads []*cluster.Part) (cost toll) {
	t.Helper()
	w.look(t, 0)
	before := w.steady(t)
	seen := w.inform(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { w.churn(t, ctx) })
	documents := &documents{client: suite.Client(t, w.front, w.Admin()), url: w.front.URL}
	running.Go(func() { documents.watch(ctx) })
	w.load.Start(t)
	step := func(what string, do func()) {
		begun := time.Now()
		do()
		<-time.After(calm)
		t.Logf("%s %s: %s, then %d lists", begun.Format("15:04:05"), what, time.Since(begun).Round(time.Second), seen.lists.Load())
	}
	<-time.After(calm)
	first := seen.lists.Load()
	replace := func(is, to string) {
		for i, p := range w.APIServers {
			step(p.Name()+" replaced", func() {
				w.look(t, (i+1)%len(w.APIServers))
				must.Do(t, p.Stop(draining))
				p.Use(is, to)
				must.Do(t, p.Restart(t.Context()))
			})
		}
	}
	replace(older, newer)
	for i := range w.APIServers {
		w.look(t, i)
		if is := must.Get(w.core.Discovery().ServerVersion())(t).GitVersion; is == from {
			t.Fatalf("server %d is still %s", i, is)
		}
	}
	documents.upgraded.Store(true)
	step("an etcd member killed", func() {
		w.Members[2].Kill()
		<-time.After(calm)
		must.Do(t, w.Members[2].Restart(t.Context()))
	})
	for _, p := range fairleads {
		step(p.Name()+" replaced", func() { must.Do(t, p.Stop(draining)); must.Do(t, p.Restart(t.Context())) })
		step(p.Name()+"'s certificate", func() {
			must.Get(w.PKI.Serving.Issue(p.Name(), cluster.Leaf{User: p.Name(), Names: []string{"127.0.0.1", "localhost"}}))(t)
		})
	}
	replace(newer, older)
	cost = toll{Lists: seen.lists.Load() - first, TooLarge: seen.tooLarge.Load()}
	cancel()
	running.Wait()
	cost.Failed = volley.Judge(t, w.load.Stop(), 1<<30, func(s *volley.Shot) bool { return s.Code != http.StatusOK || s.Err != nil || s.Took > latest })
	cost.Orphans, cost.Gone = w.orphans(t), documents.gone()
	w.unmoved(t, before)
	return cost
}
