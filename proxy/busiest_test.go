package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/internal/busiest"
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
				check.Same(t, true, r.Slowest > 0 || r.Watches > 0, "%+v took time", r)
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
