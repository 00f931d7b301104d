//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
	"github.com/fairlead-proxy/fairlead/tests/volley"
)

// teller adds a token to every request.
type teller struct {
	*http.Transport
	token func() string
}

// RoundTrip implements http.RoundTripper.
func (c teller) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+c.token())
	return c.Transport.RoundTrip(r)
}

// thrifty returns a client with one connection, or up to 16 over HTTP/1.1.
func (q *quay) thrifty(t *testing.T, pair cluster.Pair, token func() string) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: clientTLS(t, q.server, pair, q.protos()[0]), ForceAttemptHTTP2: q.lane != "http1", MaxConnsPerHost: 1}
	if q.lane == "http1" {
		transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost = 16, 16
	}
	t.Cleanup(transport.CloseIdleConnections)
	if token == nil {
		return &http.Client{Transport: transport}
	}
	return &http.Client{Transport: teller{transport, token}}
}

// testFlood sends a thousand different bad tokens a second while others work. kube-apiserver
// answers an unauthenticated HTTP/2 request by closing the connection: if Fairlead shared it, the
// watches of others would end.
func testFlood(t *testing.T, q *quay) {
	const badTokens, lasts = 1000, 10 * time.Second
	alice, ns := q.StaticToken("alice"), q.namespace(t)
	local, remote := q.server.URL+"/api/v1/namespaces/"+ns+"/configmaps", q.server.URL+widget
	q.admin(t).Run(t, "create", "rolebinding", "readers", "-n", ns, "--clusterrole=view", "--user=alice")
	q.as(t, q.server, alice).Soon(t, "the new binding is known", "get", "configmaps", "-n", ns)
	users := []*http.Client{q.thrifty(t, q.PKI.Admin, nil), q.thrifty(t, cluster.Pair{}, func() string { return alice.Token })}
	var sent, ended atomic.Int64
	var intruders []*http.Client
	for range 4 {
		intruders = append(intruders, q.thrifty(t, cluster.Pair{}, func() string { return fmt.Sprintf("not-a-token-%d", sent.Add(1)) }))
	}
	for _, path := range []string{local, q.server.URL + "/apis/" + widgetsGV + "/namespaces/default/widgets"} {
		for _, c := range users {
			res := must.Get(ask.Open(t.Context(), c, path+"?watch=true", nil))(t)
			go func() { // ends with the test's context
				defer res.Body.Close()
				if _, err := io.Copy(io.Discard, res.Body); t.Context().Err() == nil {
					t.Logf("a watch of %s ended: %v", path, err)
					ended.Add(1)
				}
			}()
		}
	}
	get := func(i int) (string, string, string) { return http.MethodGet, []string{local, remote}[i/4%2], "" }
	work := (&volley.Load{Every: 25 * time.Millisecond, Clients: users, Make: get}).Start(t)
	flood := (&volley.Load{Every: time.Second / badTokens, Clients: intruders, Make: get}).Start(t)
	suite.Pause(t, lasts)
	refused := flood.Stop()
	volley.Judge(t, refused, 0, func(s *volley.Shot) bool {
		return !slices.Contains([]int{http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusServiceUnavailable}, s.Code)
	})
	if want := badTokens * int(lasts/time.Second) * 9 / 10; len(refused) < want {
		t.Errorf("%d bad tokens were sent, want %d", len(refused), want)
	}
	volley.Judge(t, work.Stop(), 0, func(s *volley.Shot) bool { return s.Code != http.StatusOK || s.Err != nil })
	if n := ended.Load(); n != 0 {
		t.Errorf("%d of 4 watches ended", n)
	}
}
