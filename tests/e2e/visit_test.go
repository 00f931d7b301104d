//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// quay is the world with an extension server that records exactly what it receives.
type quay struct {
	*world
	widgets *extension.Server // reached through Fairlead and, for comparison, through kube-apiserver's aggregator
	count   atomic.Int64      // of visits
}

const (
	widgetsGV   = "widgets.example.com/v1"
	redirecting = "redirecting" // a widget that redirects
	hanging     = "hanging"     // a widget that never answers
	widgetsPath = "/apis/" + widgetsGV + "/namespaces/default/widgets"
)

const widgetsRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: widgets}
rules:
- {apiGroups: [widgets.example.com], resources: ["*"], verbs: ["*"]}
`

// newQuay starts the extension server until the test ends, and lets all authenticated users use it.
func newQuay(t *testing.T, w *world) *quay {
	t.Helper()
	q := &quay{world: w, widgets: extension.Start(t, extension.Config{
		CA: w.PKI.Serving.CA, Names: []string{"api.widgets.svc"}, RequestHeaderCA: w.PKI.FrontProxy.CA.Pool(), AllowedNames: []string{"front-proxy-client"},
		RejectWith: http.StatusUnauthorized,
		Record:     8192, // probes and discovery are recorded, too, and a case must find its own requests
	})}
	must.Do(t, q.widgets.Set(
		extension.Fault{Kind: extension.Redirect, Path: widgetsPath + "/" + redirecting, Text: "https://127.0.0.1:1/elsewhere"},
		extension.Fault{Kind: extension.Hang, Path: widgetsPath + "/" + hanging},
	))
	must.Do(t, w.Register(t.Context(), cluster.Backend{
		Namespace: "widgets", Service: "api", Port: q.widgets.Port(), CAFile: w.PKI.Serving.CertFile, GroupVersions: []string{widgetsGV},
	}))
	kc := w.admin(t)
	kc.feed(t, widgetsRole, "create", "-f", "-")
	kc.run(t, "create", "clusterrolebinding", "widgets", "--clusterrole=widgets", "--group=system:authenticated")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, e := range []cluster.Endpoint{w.server, w.EndpointOf(0)} {
		must.Do(t, w.WaitAvailable(ctx, e, widgetsGV))
	}
	alice := w.as(t, w.server, w.StaticToken("alice"))
	suite.Eventually(t, time.Minute, "the new role is known", func() (bool, string) {
		a := alice.try(t, "", "get", "--raw", widgetsPath+"/widget-000")
		return a.Code == 0, a.Errs
	})
	return q
}

// visit is a request of a client.
type visit struct {
	proto        string // h2 or http/1.1
	pair         cluster.Pair
	header       http.Header // over HTTP/1.1, names are sent as spelled here
	method, path string
	body         string
	trailer      http.Header
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
func (q *quay) visit(t *testing.T, e cluster.Endpoint, v visit) (reply, *extension.Request) {
	t.Helper()
	marker := "marker=" + strconv.FormatInt(q.count.Add(1), 10) + "-"
	if strings.Contains(v.path, "?") {
		v.path += "&" + marker
	} else {
		v.path += "?" + marker
	}
	return v.send(t, e), q.received(marker)
}

// send sends v to e on a new connection.
func (v visit) send(t *testing.T, e cluster.Endpoint) reply {
	t.Helper()
	var body io.Reader
	if v.body != "" {
		body = io.NopCloser(strings.NewReader(v.body)) // of unknown length, because only such bodies have trailers
	}
	req := must.Get(http.NewRequestWithContext(t.Context(), v.method, e.URL+v.path, body))(t)
	maps.Copy(req.Header, v.header)
	req.Trailer = v.trailer
	transport := &http.Transport{TLSClientConfig: clientTLS(t, e, v.pair, v.proto), ForceAttemptHTTP2: v.proto == "h2", DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	r := answer(t, transport, req)
	if want := map[string]string{"h2": "HTTP/2.0", "http/1.1": "HTTP/1.1"}[v.proto]; r.proto != want {
		t.Fatalf("answered by %s, want %s", r.proto, v.proto)
	}
	return r
}

// received returns the request with marker in its target, or nil.
func (q *quay) received(marker string) *extension.Request {
	for _, r := range q.widgets.Requests(0) {
		if strings.Contains(r.Target, marker) {
			return &r
		}
	}
	return nil
}

// identity returns all fields of a request that could identify its sender, in any spelling: their
// names in lower case, underscores kept.
func identity(r *extension.Request) map[string][]string {
	out := map[string][]string{}
	add := func(name, value string) {
		lower := strings.ToLower(name)
		plain := strings.ReplaceAll(lower, "_", "-")
		for _, prefix := range []string{"x-remote-", "x-harbour-", "authorization", "proxy-authorization", "impersonate-"} {
			if strings.HasPrefix(plain, prefix) {
				out[lower] = append(out[lower], value)
			}
		}
	}
	for _, f := range r.Fields {
		add(f.Name, f.Value)
	}
	for name, values := range r.Trailer {
		for _, v := range values {
			add("trailer "+name, v) // an unexpected name, so that comparisons fail
			add(name, v)
		}
	}
	return out
}
