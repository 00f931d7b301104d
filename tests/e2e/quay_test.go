//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// quay is the world with an extension server that records exactly what it receives.
type quay struct {
	*world
	widgets *extension.Server // reached through Fairlead and, for comparison, through kube-apiserver's aggregator
	count   atomic.Int64      // of visits
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

// clientTLS returns a configuration that trusts e and presents pair, whichever CAs the server asks
// for.
func clientTLS(t *testing.T, e cluster.Endpoint, pair cluster.Pair, protos ...string) *tls.Config {
	t.Helper()
	c := must.Get(rest.TLSConfigFor(e.RESTConfig(cluster.Credentials{Pair: pair})))(t)
	c.NextProtos, c.ServerName = protos, "127.0.0.1"
	return c
}

// visit sends v to e. It returns the answer and the request that reached the extension server, or
// nil.
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
	transport := &http.Transport{TLSClientConfig: clientTLS(t, e, v.pair, v.proto), Protocols: new(http.Protocols), DisableKeepAlives: true}
	transport.Protocols.SetHTTP1(v.proto != "h2")
	transport.Protocols.SetHTTP2(v.proto == "h2")
	defer transport.CloseIdleConnections()
	return must.Get(ask.Do(t.Context(), &http.Client{Transport: transport}, v.method, e.URL+v.path, v.header, v.body))(t)
}

// identity returns all fields of a request that could identify its sender, by their names in lower
// case.
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
