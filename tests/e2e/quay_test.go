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
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// quay is the world with an extension server that records exactly what it receives.
type quay struct {
	*world
	widgets  *extension.Server // reached through Fairlead and, for comparison, through kube-apiserver's aggregator
	count    atomic.Int64      // of visits
	nameless bool              // kube-apiserver does not tell which certificate a user has, as older releases
}

const (
	widgetsGV = "widgets.example.com/v1"
	widget    = "/apis/" + widgetsGV + "/namespaces/default/widgets/widget-000"
)

// newQuay starts the extension server until the test ends, and lets all authenticated users use it.
func newQuay(t *testing.T, w *world) *quay {
	t.Helper()
	q := &quay{world: w, widgets: extension.Start(t, extension.Config{
		CA: w.PKI.Serving.CA, Names: []string{"api.widgets.svc"}, RequestHeaderCA: w.PKI.FrontProxy.CA.Pool(), AllowedNames: []string{"front-proxy-client"},
		RejectWith: http.StatusUnauthorized,
		Record:     8192, // probes and discovery are recorded, too, and a case must find its own requests
	})}
	must.Do(t, w.Register(t.Context(), cluster.Backend{
		Namespace: "widgets", Service: "api", Port: q.widgets.Port(), CAFile: w.PKI.Serving.CertFile, GroupVersions: []string{widgetsGV},
	}))
	kc := w.admin(t)
	kc.Run(t, "create", "clusterrole", "widgets", "--verb=*", "--resource=*.widgets.example.com")
	kc.Run(t, "create", "clusterrolebinding", "widgets", "--clusterrole=widgets", "--group=system:authenticated")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, e := range []cluster.Endpoint{w.server, w.EndpointOf(0)} {
		must.Do(t, w.WaitAvailable(ctx, e, widgetsGV))
	}
	w.as(t, w.server, w.StaticToken("alice")).Soon(t, "the new role is known", "get", "--raw", widget)
	return q
}

// visit is a request of a client.
type visit struct {
	proto              string // h2 or http/1.1
	pair               cluster.Pair
	header             http.Header
	method, path, body string
}

// transport returns connections to e by one protocol. They present pair, whichever CAs the server asks for.
func transport(t *testing.T, e cluster.Endpoint, pair cluster.Pair, proto string) *http.Transport {
	t.Helper()
	c := must.Get(rest.TLSConfigFor(e.RESTConfig(cluster.Credentials{Pair: pair})))(t)
	c.NextProtos, c.ServerName = []string{proto}, "127.0.0.1"
	rt := &http.Transport{TLSClientConfig: c, Protocols: ask.Only(proto == "h2")}
	t.Cleanup(rt.CloseIdleConnections)
	return rt
}

// visit sends v to e. It returns the answer and the request that reached the extension server, or nil.
func (q *quay) visit(t *testing.T, e cluster.Endpoint, v visit) (ask.Reply, *extension.Request) {
	t.Helper()
	marker := "marker=" + strconv.FormatInt(q.count.Add(1), 10) + "-"
	v.path += "?" + marker
	got := v.send(t, e)
	for _, r := range q.widgets.Requests() {
		if strings.Contains(r.Target, marker) {
			return got, &r
		}
	}
	return got, nil
}

// send sends v to e on a new connection.
func (v visit) send(t *testing.T, e cluster.Endpoint) ask.Reply {
	t.Helper()
	rt := transport(t, e, v.pair, v.proto)
	rt.DisableKeepAlives = true
	return must.Get(ask.Do(t.Context(), &http.Client{Transport: rt}, v.method, e.URL+v.path, v.header, v.body))(t)
}

// identity returns all fields of a request that could identify its sender, by their names in lower case.
func identity(r *extension.Request) map[string][]string {
	out := map[string][]string{}
	for name, values := range r.Header {
		lower := strings.ToLower(name)
		for _, prefix := range []string{"x-remote-", "x-harbour-", "authorization", "proxy-authorization", "impersonate-"} {
			if strings.HasPrefix(strings.ReplaceAll(lower, "_", "-"), prefix) {
				out[lower] = values
			}
		}
	}
	return out
}

// testAdmin checks the admin port: health is public, the rest needs authorization by the cluster.
func testAdmin(t *testing.T, q *quay) {
	get := func(cr cluster.Credentials, path string) ask.Reply {
		return visit{proto: q.protos()[0], pair: cr.Pair, method: http.MethodGet, path: path, header: ask.Bearer(cr.Token)}.send(t, q.front.Admin)
	}
	if r := get(cluster.Credentials{}, "/readyz?verbose"); r.Code != http.StatusOK || !strings.Contains(r.Body, "[+]table ok\n") {
		t.Errorf("readyz: %d %s", r.Code, r.Body)
	}
	for _, path := range []string{"/metrics", "/status", "/debug/pprof/cmdline"} {
		for want, cr := range map[int]cluster.Credentials{
			http.StatusUnauthorized: {Token: "not-a-token"}, http.StatusForbidden: q.StaticToken("alice"), http.StatusOK: q.Admin(),
		} {
			if r := get(cr, path); r.Code != want {
				t.Errorf("%s: %d %.300s, want %d", path, r.Code, r.Body, want)
			}
		}
	}
}

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
	rt := transport(t, q.server, pair, q.protos()[0])
	rt.MaxConnsPerHost = 1
	if q.lane == "http1" {
		rt.MaxConnsPerHost, rt.MaxIdleConnsPerHost = 16, 16
	}
	if token == nil {
		return &http.Client{Transport: rt}
	}
	return &http.Client{Transport: teller{rt, token}}
}

// testFlood sends a thousand different bad tokens a second while others work. kube-apiserver answers an unauthenticated
// HTTP/2 request by closing the connection: if Fairlead shared it, the watches of others would end.
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
