//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// badTokens is their number per second, floodTime the duration of the flood.
const (
	badTokens = 1000
	floodTime = 10 * time.Second
	// grown is how many connections a pool may add: kube-apiserver allows 100 streams on each, and
	// busy cores may have more requests in flight. If bad tokens ended shared connections, each
	// would cost a new one.
	grown = 2
)

// tally counts results of requests.
type tally struct {
	mu    sync.Mutex // guards all
	codes map[string]int
	times []time.Duration
}

func (y *tally) add(what string, took time.Duration) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.codes == nil {
		y.codes = map[string]int{}
	}
	y.codes[what]++
	y.times = append(y.times, took)
}

// String must not be called before everything has been added.
func (y *tally) String() string {
	slices.Sort(y.times)
	if len(y.times) == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%v, half within %s, all within %s", y.codes, y.times[len(y.times)/2].Round(time.Millisecond), y.times[len(y.times)-1].Round(time.Millisecond))
}

// thrifty returns a client with one connection, or up to 16 over HTTP/1.1.
func (w *world) thrifty(t *testing.T, e cluster.Endpoint, pair cluster.Pair) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: clientTLS(t, e, pair, w.protos()[0]), ForceAttemptHTTP2: w.lane != "http1", MaxConnsPerHost: 1}
	if w.lane == "http1" {
		transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost = 16, 16
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// get sends a request and counts its result.
func (y *tally) get(ctx context.Context, c *http.Client, url, token string) {
	begun := time.Now()
	reply, err := ask.Do(ctx, c, http.MethodGet, url, ask.Bearer(token), "")
	if err != nil {
		y.add(err.Error(), time.Since(begun))
		return
	}
	y.add(strconv.Itoa(reply.Code), time.Since(begun))
}

// retry is get as client-go does it: it obeys Retry-After up to ten times.
func (y *tally) retry(ctx context.Context, c *http.Client, url, token string) {
	begun, what := time.Now(), ""
	for range 10 {
		reply, err := ask.Do(ctx, c, http.MethodGet, url, ask.Bearer(token), "")
		if err != nil {
			what = err.Error()
			break
		}
		what = strconv.Itoa(reply.Code)
		seconds, err := strconv.Atoi(reply.Header.Get("Retry-After"))
		if err != nil {
			break
		}
		<-time.After(time.Duration(seconds) * time.Second)
	}
	y.add(what, time.Since(begun))
}

// dials returns how many connections Fairlead has made to the local apiserver for authenticated
// users, by pool.
func (w *world) dials(t *testing.T) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for series, n := range must.Get(ask.Metrics(t.Context(), w.thrifty(t, w.front.Admin, w.PKI.Admin), w.front.Admin.URL))(t) {
		for _, pool := range []string{"local-certificate", "local-impersonate", "local-proven"} {
			if strings.HasPrefix(series, `fairlead_backend_dials_total{name="`+pool+`"`) {
				found[pool] += n
			}
		}
	}
	if len(found) < 2 {
		t.Fatalf("no count of connections: %v", found)
	}
	return found
}

// testFlood sends a thousand different bad tokens a second while others work. kube-apiserver
// answers an unauthenticated HTTP/2 request by closing the connection: if Fairlead shared it, the
// watches of others would end.
func testFlood(t *testing.T, q *quay) {
	alice, kc, ns := q.StaticToken("alice").Token, q.admin(t), q.namespace(t)
	kc.run(t, "create", "serviceaccount", "newcomer", "-n", ns)
	local, remote := q.server.URL+"/api/v1/namespaces/"+ns, q.server.URL+widgetsPath+"/widget-000"
	kc.run(t, "create", "rolebinding", "readers", "-n", ns, "--clusterrole=view", "--user=alice", "--serviceaccount="+ns+":newcomer")
	who := q.as(t, q.server, q.StaticToken("alice"))
	suite.Eventually(t, time.Minute, "the new binding is known", func() (bool, string) {
		a := who.try(t, "", "get", "configmaps", "-n", ns)
		return a.Code == 0, a.Errs
	})
	byCert, byToken, intruders := q.thrifty(t, q.server, q.PKI.Admin), q.thrifty(t, q.server, cluster.Pair{}), make([]*http.Client, 4)
	for i := range intruders {
		intruders[i] = q.thrifty(t, q.server, cluster.Pair{})
	}
	watches := q.openWatches(t, ns, byCert, byToken, alice)
	var users, strangers, newcomers tally
	work := func(ctx context.Context) {
		volley.Pace(ctx, 50*time.Millisecond, func(i int) {
			users.get(t.Context(), byCert, []string{local, remote}[i%2], "")
			users.get(t.Context(), byToken, []string{local + "/configmaps", remote}[i%2], alice)
		})
	}
	calm, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	work(calm) // so that all their connections exist
	cancel()
	before := q.dials(t)
	ctx, cancel := context.WithTimeout(t.Context(), floodTime)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { work(ctx) })
	all.Go(func() {
		volley.Pace(ctx, time.Second/badTokens, func(i int) {
			strangers.get(t.Context(), intruders[i%len(intruders)], []string{local, remote}[i%2], fmt.Sprintf("not-a-token-%d", i))
		})
	})
	all.Go(func() {
		// A token is unproven at first, as the bad ones are: when too many are waiting, Fairlead
		// asks the client to retry.
		volley.Pace(ctx, time.Second, func(i int) {
			token := strings.TrimSpace(kc.run(t, "create", "token", "newcomer", "-n", ns))
			newcomers.retry(t.Context(), byToken, []string{local + "/configmaps", remote}[i%2], token)
		})
	})
	all.Wait()
	after := q.dials(t)
	t.Logf("users: %s\nnewcomers: %s\nstrangers: %s\nconnections before: %v\nafter: %v", &users, &newcomers, &strangers, before, after)
	for name, y := range map[string]*tally{"users": &users, "newcomers": &newcomers} {
		if y.codes["200"] != len(y.times) || len(y.times) == 0 {
			t.Errorf("answers to %s: %s", name, y)
		}
	}
	if n := strangers.codes["401"] + strangers.codes["429"] + strangers.codes["503"]; n != len(strangers.times) || n < badTokens*int(floodTime/time.Second)*9/10 {
		t.Errorf("answers to %d bad tokens: %s", len(strangers.times), &strangers)
	}
	for pool, n := range after {
		if n > before[pool]+grown {
			t.Errorf("%s: %v connections, %v before: bad tokens ended those of other users", pool, n, before[pool])
		}
	}
	if n := watches.Load(); n != 0 {
		t.Errorf("%d of 4 watches ended", n)
	}
}

// openWatches opens watches by certificate and by token, of local and remote objects, and counts
// those that end before the test.
func (q *quay) openWatches(t *testing.T, ns string, byCert, byToken *http.Client, token string) *atomic.Int64 {
	t.Helper()
	var ended atomic.Int64
	for _, path := range []string{"/api/v1/namespaces/" + ns + "/configmaps", widgetsPath} {
		for c, header := range map[*http.Client]http.Header{byCert: nil, byToken: ask.Bearer(token)} {
			res := must.Get(ask.Open(t.Context(), c, q.server.URL+path+"?watch=true", header))(t)
			go func() { // ends with the test's context
				defer res.Body.Close()
				if _, err := io.Copy(io.Discard, res.Body); t.Context().Err() == nil {
					t.Logf("a watch of %s ended: %v", path, err)
					ended.Add(1)
				}
			}()
		}
	}
	return &ended
}
