//go:build e2e

package konnectivity

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// testThrough sends requests at the same time, a watch, upgrades, and asks for documents.
func (w *world) testThrough(t *testing.T) {
	if r, err := new(http.Client).Get("http://" + w.extension.Addr()); err == nil {
		t.Fatalf("reached without konnectivity: %s", r.Status)
	}
	for _, s := range w.sides {
		t.Run(s.name, func(t *testing.T) {
			var all errgroup.Group
			for range 200 {
				all.Go(func() error {
					r, err := ask.Do(t.Context(), s.client, http.MethodGet, s.endpoint.URL+objects, nil, "")
					if err == nil && (r.Code != http.StatusOK || len(r.Body) < 100_000) {
						err = fmt.Errorf("list: %d, %d bytes", r.Code, len(r.Body))
					}
					return err
				})
			}
			must.Do(t, all.Wait())
			watch := must.Get(ask.Open(t.Context(), s.client, s.endpoint.URL+objects+"?watch=true", nil))(t)
			defer watch.Body.Close()
			w.extension.Emit()
			for text, part := "", make([]byte, 32<<10); !strings.Contains(text, "MODIFIED"); {
				n, err := watch.Body.Read(part)
				must.Do(t, err)
				text += string(part[:n])
			}
			for _, protocol := range []string{"websocket", "SPDY/3.1"} {
				w.echo(t, s, protocol)
			}
			for _, path := range []string{"/apis/" + widgets, "/openapi/v3/apis/" + widgets} {
				must.Do(t, ask.Serves(t.Context(), s.client, s.endpoint.URL+path))
			}
		})
	}
}

// echo sends a megabyte by an upgraded connection, which returns it.
func (w *world) echo(t *testing.T, s *side, protocol string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: suite.TLS(t, s.endpoint, w.Admin()), Protocols: ask.Only(false)}}
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, s.endpoint.URL+objects+"/widget-000/exec", nil))(t)
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}}
	res := must.Get(c.Do(r))(t)
	defer res.Body.Close()
	tunnel, ok := res.Body.(io.ReadWriteCloser)
	if res.StatusCode != http.StatusSwitchingProtocols || !ok {
		t.Fatalf("%s: %s", protocol, res.Status)
	}
	sent := strings.Repeat("ahoy ", 200<<10)
	go func() { _, _ = io.WriteString(tunnel, sent) }() // ends with the tunnel
	back := make([]byte, len(sent))
	_, err := io.ReadFull(tunnel, back)
	must.Do(t, err)
	check.Same(t, true, string(back) == sent, "%s: what came back is what was sent", protocol)
}

const (
	rounds = 3                      // of each kill
	every  = 100 * time.Millisecond // between requests of a side
	away   = 5 * time.Second        // how long a killed part is away
	stuck  = 90 * time.Second       // how long an agent does not answer: more than a request's deadline of a minute
	fds    = 20                     // connections that the sides may keep in reserve afterwards
	latest = 30 * time.Second       // until the sides serve again: gRPC's longest pause of an agent is 10 s
	settle = 2 * time.Minute        // until what hung has ended: gRPC's dials last 30 s, HTTP/1.1's idle connections 90 s
)

// outcome is what became of a request.
type outcome struct {
	sent time.Time
	took time.Duration
	code int // zero: no answer
}

// ask sends a request.
func (s *side) ask(t *testing.T) outcome {
	o := outcome{sent: time.Now()}
	if r, err := ask.Do(t.Context(), s.client, http.MethodGet, s.endpoint.URL+objects+"/widget-000", nil, ""); err == nil {
		o.code = r.Code
	}
	o.took = time.Since(o.sent)
	return o
}

// during sends requests until over is closed and one that was sent later is answered. It returns all outcomes, and
// when that was.
func (s *side) during(t *testing.T, over <-chan struct{}) (all []outcome, back time.Time) {
	outcomes, open := make(chan outcome, 10_000), 0
	tick := time.NewTicker(every)
	defer tick.Stop()
	var ended time.Time
	for back.IsZero() || open > 0 {
		select {
		case <-over:
			ended, over = time.Now(), nil
		case <-tick.C:
			if back.IsZero() {
				open++
				go func() { outcomes <- s.ask(t) }() // ends with the client's time limit
			}
		case o := <-outcomes:
			open--
			all = append(all, o)
			if back.IsZero() && o.code == http.StatusOK && over == nil && o.sent.After(ended) {
				back = time.Now()
			}
		}
	}
	return all, back
}

// outage sends requests by both sides while f runs and until both serve again.
func (w *world) outage(t *testing.T, f func()) {
	t.Helper()
	type result struct {
		all  []outcome
		back time.Time
	}
	over, results := make(chan struct{}), make([]result, len(w.sides))
	var sides sync.WaitGroup
	for i, s := range w.sides {
		sides.Go(func() { results[i].all, results[i].back = s.during(t, over) })
	}
	f()
	ended := time.Now()
	close(over)
	sides.Wait()
	for i, s := range w.sides {
		codes, longest, slow := map[int]int{}, time.Duration(0), 0
		for _, o := range results[i].all {
			codes[o.code]++
			if longest = max(longest, o.took); o.took > 10*time.Second {
				slow++
			}
		}
		after := results[i].back.Sub(ended).Round(time.Millisecond)
		t.Logf("%s: serves again after %v; answers %v, the longest after %v, %d after more than 10 s", s.name, after, codes,
			longest.Round(time.Millisecond), slow)
		if s.name == "Fairlead" && (after > latest || codes[0] > 0) {
			t.Errorf("Fairlead serves again after %v, and leaves %d requests without an answer", after, codes[0])
		}
	}
}

// kept checks that Fairlead has no more goroutines and descriptors than before f, after a while.
func (w *world) kept(t *testing.T, f func()) {
	t.Helper()
	var before [2][2]int
	for i, s := range w.sides {
		before[i][0], before[i][1] = s.metrics()
	}
	f()
	for i, s := range w.sides {
		at := func() (bool, string) {
			g, d := s.metrics()
			return g <= before[i][0]+100 && d <= before[i][1]+fds, fmt.Sprintf("%s has %d goroutines and %d descriptors, before %v", s.name, g, d, before[i])
		}
		_, now := at()
		t.Log(now)
		if s.name == "Fairlead" {
			suite.Eventually(t, settle, "nothing is left", at)
		}
		_, now = at()
		t.Log("later: " + now)
	}
}

func (w *world) testKilled(t *testing.T, p *cluster.Part) {
	w.kept(t, func() {
		for range rounds {
			w.outage(t, func() {
				p.Kill()
				suite.Pause(t, away)
				must.Do(t, p.Restart(t.Context()))
			})
		}
	})
}

// testStopped has an agent that stays connected and answers nothing (kubernetes-sigs/apiserver-network-proxy#855).
func (w *world) testStopped(t *testing.T) {
	_, before := w.sides[0].metrics()
	w.kept(t, func() {
		w.outage(t, func() {
			must.Do(t, w.agent.Signal(syscall.SIGSTOP))
			for range 3 {
				suite.Pause(t, stuck/3)
				for _, s := range w.sides {
					g, d := s.metrics()
					t.Logf("%s: %d goroutines, %d descriptors", s.name, g, d)
					if s.name == "Fairlead" && d > before+fds {
						t.Errorf("dials that nobody answers are kept: %d descriptors, before %d", d, before)
					}
				}
			}
			must.Do(t, w.agent.Signal(syscall.SIGCONT))
		})
	})
}
