//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// tally counts results of requests.
type tally struct {
	mu    sync.Mutex // guards codes
	codes map[string]int
}

// get sends a request and counts its result.
func (y *tally) get(ctx context.Context, c *http.Client, url, token string) {
	reply, err := ask.Do(ctx, c, http.MethodGet, url, ask.Bearer(token), "")
	what := strconv.Itoa(reply.Code)
	if err != nil {
		what = err.Error()
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.codes[what]++
}

// only requires that at least n requests had these results, and none another.
func (y *tally) only(t *testing.T, who string, n int, codes ...string) {
	t.Helper()
	all, those := 0, 0
	for _, k := range y.codes {
		all += k
	}
	for _, code := range codes {
		those += y.codes[code]
	}
	if those != all || all < n {
		t.Errorf("answers to %s: %v, want %d of %v", who, y.codes, n, codes)
	}
}

// thrifty returns a client with one connection, or up to 16 over HTTP/1.1.
func (q *quay) thrifty(t *testing.T, pair cluster.Pair) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: clientTLS(t, q.server, pair, q.protos()[0]), ForceAttemptHTTP2: q.lane != "http1", MaxConnsPerHost: 1}
	if q.lane == "http1" {
		transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost = 16, 16
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// testFlood sends a thousand different bad tokens a second while others work. kube-apiserver
// answers an unauthenticated HTTP/2 request by closing the connection: if Fairlead shared it, the
// watches of others would end.
func testFlood(t *testing.T, q *quay) {
	const badTokens, lasts = 1000, 10 * time.Second
	alice, ns := q.StaticToken("alice").Token, q.namespace(t)
	local, remote := q.server.URL+"/api/v1/namespaces/"+ns+"/configmaps", q.server.URL+widget
	q.admin(t).run(t, "create", "rolebinding", "readers", "-n", ns, "--clusterrole=view", "--user=alice")
	q.as(t, q.server, q.StaticToken("alice")).soon(t, "the new binding is known", "get", "configmaps", "-n", ns)
	byCert, byToken, intruders := q.thrifty(t, q.PKI.Admin), q.thrifty(t, cluster.Pair{}), make([]*http.Client, 4)
	for i := range intruders {
		intruders[i] = q.thrifty(t, cluster.Pair{})
	}
	var ended atomic.Int64
	for _, path := range []string{local, q.server.URL + "/apis/" + widgetsGV + "/namespaces/default/widgets"} {
		for c, header := range map[*http.Client]http.Header{byCert: nil, byToken: ask.Bearer(alice)} {
			res := must.Get(ask.Open(t.Context(), c, path+"?watch=true", header))(t)
			go func() { // ends with the test's context
				defer res.Body.Close()
				if _, err := io.Copy(io.Discard, res.Body); t.Context().Err() == nil {
					t.Logf("a watch of %s ended: %v", path, err)
					ended.Add(1)
				}
			}()
		}
	}
	users, strangers := tally{codes: map[string]int{}}, tally{codes: map[string]int{}}
	for _, c := range intruders { // so that all connections exist
		strangers.get(t.Context(), c, local, "not-a-token")
	}
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() {
		volley.Pace(ctx, 50*time.Millisecond, func(i int) {
			users.get(t.Context(), byCert, []string{local, remote}[i%2], "")
			users.get(t.Context(), byToken, []string{local, remote}[i%2], alice)
		})
	})
	all.Go(func() {
		volley.Pace(ctx, time.Second/badTokens, func(i int) {
			strangers.get(t.Context(), intruders[i%len(intruders)], []string{local, remote}[i%2], fmt.Sprintf("not-a-token-%d", i))
		})
	})
	all.Wait()
	users.only(t, "users", 1, "200")
	strangers.only(t, "bad tokens", badTokens*int(lasts/time.Second)*9/10, "401", "429", "503")
	if n := ended.Load(); n != 0 {
		t.Errorf("%d of 4 watches ended", n)
	}
}
