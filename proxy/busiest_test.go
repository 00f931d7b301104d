package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/busiest"
	"github.com/fairlead-proxy/fairlead/proxy/accesslog"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Every request is counted, over both protocols, as its effective user's. A token that only the local apiserver knows
// has its user when it is shown, in the rows from before that, too. One that nobody has accepted has none.
func TestBusiest(t *testing.T) {
	everyWay(t, func(t *testing.T, proto string) {
		w := newWorld(t, worldConfig{local: func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Header.Get("Authorization") == "Bearer token-of-nobody":
				w.WriteHeader(http.StatusUnauthorized)
			case r.URL.Path == "/api/v1/nodes":
				w.WriteHeader(http.StatusInternalServerError)
			case r.URL.Query().Has("watch"):
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			default:
				_, _ = io.WriteString(w, "answer")
			}
		}})
		c := w.httpClient(t, proto, nil)
		send := func(status int, user, method, target, body string) {
			t.Helper()
			r := w.as(t, user, method, target, strings.NewReader(body))
			r.Header.Set("User-Agent", "agent")
			w.do(t, c, r).want(t, status, target)
		}
		send(200, "bob", "GET", "/version/", "")
		send(200, "bob", "PATCH", "/apis/apps/v1/namespaces/a/deployments/b/scale", "12345")
		send(200, "bob", "PATCH", "/apis/apps/v1/namespaces/a/deployments/b/scale", "123")
		send(500, "bob", "GET", "/api/v1/nodes", "")
		send(401, "nobody", "GET", "/api/v1/nodes", "")
		send(200, "bob", "GET", remoteGV+"/widgets", "")
		watch := must.Get(c.Do(w.as(t, "bob", "GET", "/api/v1/pods?watch=true", nil)))(t)
		defer watch.Body.Close()
		who := func(user, verb, resource, server string) busiest.Who {
			return busiest.Who{User: user, Agent: "agent", Source: "127.0.0.1", Verb: verb, Resource: resource, Server: server}
		}
		watcher := who("bob", "watch", "pods", "local")
		watcher.Agent = "Go-http-client/" + map[string]string{"h2": "2.0", "http/1.1": "1.1"}[proto]
		for range 2 { // reviewed, and remembered
			var rows []busiest.Row
			must.Soon(t, 10*time.Second, "all requests are counted", func() bool {
				a := w.proxy.Busiest(t.Context(), "caller", "minute", "requests", maxNamed)
				rows = a.Rows
				return a.Total.Requests == 6
			})
			got := map[busiest.Who]busiest.Counts{}
			for _, r := range rows {
				if r.Slowest <= 0 && r.Watches == 0 {
					t.Errorf("%+v took no time", r)
				}
				r.Slowest = 0
				got[r.Who] = r.Counts
			}
			check.Same(t, map[busiest.Who]busiest.Counts{
				who("bob", "get", "/version/", "local"):                                   {Requests: 1, Out: 6},
				who("bob", "patch", "deployments.apps/scale", "local"):                    {Requests: 2, In: 8, Out: 12},
				who("bob", "list", "nodes", "local"):                                      {Requests: 1, Errors: 1},
				who("", "list", "nodes", "local"):                                         {Requests: 1, Refused: 1, Out: got[who("", "list", "nodes", "local")].Out},
				who("bob", "list", "widgets.remote.example.com", "v1.remote.example.com"): {Requests: 1, Out: 2},
				watcher: {Watches: 1},
			}, got, "rows")
		}
		must.Do(t, watch.Body.Close())
		must.Soon(t, 10*time.Second, "the watch is not open", func() bool {
			a := w.proxy.Busiest(t.Context(), "user", "minute", "watches", 1)
			return a.Total == a.Rows[0].Counts || a.Total.Watches == 0 && a.Total.Requests == 7 && a.Rows[0].User == "bob"
		})
	})
}

// Among 5,000 callers with 1 to 20 requests each, one who lists every 10 ms is the first, by each
// view, and is counted as the access log has it.
func TestBusiestOfMany(t *testing.T) {
	var text bytes.Buffer
	access := accesslog.New(accesslog.Config{Writer: &text})
	stop := must.Run(t, access.Run)
	w := newWorld(t, worldConfig{Config: Config{AccessLog: access}, local: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/pods" {
			_, _ = w.Write(make([]byte, 64<<10))
		}
	}})
	const callers, most, connections = 5000, 20, 8
	send := func(c *http.Client, user, agent, target string) {
		r := w.as(t, user, "GET", target, nil)
		r.Header.Set("User-Agent", agent)
		w.do(t, c, r).want(t, http.StatusOK, agent)
	}
	ctx, end := context.WithCancel(t.Context())
	var noise, all sync.WaitGroup
	noise.Go(func() {
		c := w.httpClient(t, "h2", nil)
		for tick := time.Tick(10 * time.Millisecond); ctx.Err() == nil; <-tick {
			send(c, "carol", "noisy", "/api/v1/pods")
		}
	})
	began := time.Now()
	var found time.Duration // until he was the first
	for i := range connections {
		all.Go(func() {
			c := w.httpClient(t, "h2", nil)
			for caller := i; caller < callers; caller += connections {
				for range 1 + caller*caller%most*(caller%2) {
					send(c, "bob", fmt.Sprint("agent", caller), "/api/v1/nodes")
				}
				a := &busiest.Answer{}
				if i == 0 && found == 0 {
					a = w.proxy.Busiest(ctx, "agent", "minute", "weight", 1)
				}
				if len(a.Rows) > 0 && a.Rows[0].Agent == "noisy" {
					found = time.Since(began)
				}
			}
		})
	}
	all.Wait()
	end()
	noise.Wait()
	w.settled(t)
	answers := map[string]*busiest.Answer{}
	for _, view := range []string{"caller", "user", "agent", "resource"} {
		answers[view] = w.proxy.Busiest(t.Context(), view, "hour", "bytes", 1)
	}
	stop() // the log is complete
	var logged busiest.Counts
	for line := range strings.Lines(text.String()) {
		var l struct {
			Time  time.Time
			Agent string
			Bytes int64
		}
		must.Do(t, json.Unmarshal([]byte(line), &l))
		if l.Agent == "noisy" && !l.Time.Before(answers["caller"].From.Truncate(time.Millisecond)) && !l.Time.After(answers["caller"].To) {
			logged.Requests, logged.Out = logged.Requests+1, logged.Out+l.Bytes
		}
	}
	for view, a := range answers {
		first := a.Rows[0]
		if off := float64(first.Requests)/float64(logged.Requests) - 1; off > .02 || off < -.02 || first.Out < logged.Out*98/100 || first.Out > logged.Out*102/100 {
			t.Errorf("by %s the first is %+v; the access log has %+v", view, first, logged)
		}
	}
	if a := answers["caller"]; found == 0 || found > 10*time.Second || a.Rows[0].Agent != "noisy" || a.Rows[0].User != "carol" || a.Others.Requests < callers {
		t.Errorf("%+v was found after %v", a, found)
	}
	t.Logf("he was the first after %v; %d of his requests, %d of others", found, logged.Requests, answers["caller"].Others.Requests)
}
