//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authenticationv1 "k8s.io/api/authentication/v1"
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
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, e := range []cluster.Endpoint{w.server, w.EndpointOf(0)} {
		must.Do(t, w.WaitAvailable(ctx, e, widgetsGV))
	}
	w.as(t, w.server, w.StaticToken("alice")).Soon(t, "the new role is known", "get", "--raw", widget)
	return q
}

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
	marker := "marker=" + fmt.Sprint(q.count.Add(1)) + "-"
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
	const badTokens, lasts = 1000, 10 // a second, seconds
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
	suite.Eventually(t, 2*time.Minute, "the bad tokens are sent", func() (bool, string) { // slow cores take longer than lasts
		return sent.Load() >= badTokens*lasts, fmt.Sprint(sent.Load())
	})
	refused := flood.Stop()
	volley.Judge(t, refused, 0, func(s *volley.Shot) bool {
		return !slices.Contains([]int{http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusServiceUnavailable}, s.Code)
	})
	volley.Judge(t, work.Stop(), 0, func(s *volley.Shot) bool { return s.Code != http.StatusOK || s.Err != nil })
	if n := ended.Load(); n != 0 {
		t.Errorf("%d of 4 watches ended", n)
	}
}

// testIdentity compares the users that an extension server and the local apiserver see through
// Fairlead with those that they see through kube-apiserver. tests/e2e/directory lets roles rule.
// proxy/authn's TestUnion tries every combination of credentials; here is one of each kind.
func testIdentity(t *testing.T, q *quay) {
	direct, _ := q.visit(t, q.EndpointOf(0), visit{proto: "http/1.1", pair: q.PKI.Admin, method: http.MethodPost, path: reviews, body: review})
	q.nameless = len(whoIs(t, direct).Extra[credential]) == 0
	for _, c := range rows(t, q) {
		for _, proto := range q.protos() {
			t.Run(c.name+" by "+proto, func(t *testing.T) { t.Parallel(); testRow(t, q, c, proto) })
		}
	}
}

const (
	credential = "authentication.kubernetes.io/credential-id"
	reviews    = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	review     = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
)

// strip removes the name of a certificate if kube-apiserver's release does not name them: Fairlead always does.
func strip[V ~[]string](q *quay, extra map[string]V, key string) {
	if v := extra[key]; q.nameless && len(v) == 1 && strings.HasPrefix(v[0], "X509SHA256=") {
		delete(extra, key)
	}
}

// forgeries are all fields by which a caller could name somebody, or have a field removed.
func forgeries() http.Header {
	return http.Header{
		"X-Remote-User": {"system:admin", "system:kube-aggregator"}, "X-Remote-Group": {"system:masters", "system:nodes"}, "X-Remote-Uid": {"0"},
		"X-Remote-Extra-Scopes": {"a", "b"}, "X-Remote-Extra-%2e": {"x"}, "X-Remote-Anything": {"system:admin"},
		"X_Remote_User": {"system:admin"}, "X_Remote_Group": {"system:masters"}, "X-Remote_User": {"system:admin"}, "X_Remote-Group": {"system:masters"},
		"X-Harbour-User": {"carol"}, "X-Harbour-Group": {"system:masters"}, "X-Harbour-Extra-Scopes": {"a"},
		"X-Forwarded-For": {"127.0.0.1"}, "Forwarded": {"for=127.0.0.1;by=system:admin"}, "X-Forwarded-Host": {"kubernetes"}, "Fairlead-Via": {"somebody"},
		"Proxy-Authorization": {"Bearer admin-token"}, "Cookie": {"X-Remote-User=system:admin; token=admin-token"},
		"X-Client-Cert": {"system:admin"}, "X-Ssl-Client-Verify": {"SUCCESS"}, "X-Forwarded-Client-Cert": {"By=spiffe://x;URI=spiffe://admin"},
		"X-Http-Method-Override": {"DELETE"}, "X-Original-Url": {"/api/v1/secrets"}, "X-Rewrite-Url": {"/api/v1/secrets"},
	}
}

// row is a way to authenticate: a row of the design's table of identities, or a mixture of several.
type row struct {
	name   string
	pair   cluster.Pair
	header http.Header
	here   int // Fairlead's status for a remote where it differs from kube-apiserver's on purpose. Zero means the same.
}

func with(h http.Header, more http.Header) http.Header {
	both := h.Clone()
	for name := range more {
		both[name] = more[name]
	}
	return both
}

func rows(t *testing.T, q *quay) []row {
	t.Helper()
	issue := func(by *cluster.Authority, file string, l cluster.Leaf) cluster.Pair {
		return must.Get(by.Issue("caller-"+file, l))(t)
	}
	strangers := must.Get(q.PKI.NewAuthority("caller-foreign-ca"))(t)
	kc, ns, masters := q.admin(t), q.namespace(t), "system:masters"
	if q.lane == impersonate {
		masters = "harbour-masters"
	}
	kc.Run(t, "create", "serviceaccount", "robot", "-n", ns)
	robot := ask.Bearer(strings.TrimSpace(kc.Run(t, "create", "token", "robot", "-n", ns)))
	dave := issue(q.PKI.Client, "dave", cluster.Leaf{User: "dave", Groups: []string{"dev", "night-shift"}})
	past := issue(q.PKI.Client, "past", cluster.Leaf{User: "dave", Groups: []string{"system:masters"}, NotAfter: time.Now().Add(-30 * time.Minute)})
	foreign := issue(strangers, "foreign", cluster.Leaf{User: "admin", Groups: []string{"system:masters"}})
	front, admin := q.PKI.FrontProxyPair, q.PKI.Admin
	otherFront := issue(q.PKI.FrontProxy, "other-front", cluster.Leaf{User: "other-proxy"})
	impostor := issue(q.PKI.Client, "impostor", cluster.Leaf{User: "front-proxy-client"})
	alice, bad := ask.Bearer(q.StaticToken("alice").Token), ask.Bearer("not-a-token")
	jane, elsewhere := ask.Bearer(q.tokens.Token(t, map[string]any{"jti": "jti-" + ns})), ask.Bearer(q.tokens.Token(t, map[string]any{"aud": "elsewhere"}))
	asserted := http.Header{
		"X-Remote-User": {"carol"}, "X-Remote-Group": {"dev", "night shift"}, "X-Remote-Extra-Scopes": {"a", "b"}, "X-Remote-Extra-Example.com%2fpath": {"c"},
	}
	aliased := http.Header{"X-Harbour-User": {"carol"}, "X-Harbour-Group": {"dev"}, "X-Harbour-Extra-Scopes": {"a"}} // names that this cluster trusts, too
	impersonating := http.Header{
		"Impersonate-User": {"carol"}, "Impersonate-Group": {"dev", "ops"}, "Impersonate-Uid": {"uid-carol"}, "Impersonate-Extra-Scopes": {"all"},
	}
	return []row{
		{name: "certificate", pair: dave},
		{name: "certificate and forged headers", pair: dave, header: forgeries()},
		{name: "ServiceAccount token", header: robot},
		{name: "static token", header: alice},
		{name: "token and forged headers", header: with(forgeries(), alice)},
		{name: "JWT", header: jane},
		{name: "JWT for another audience", header: elsewhere},
		{name: "front proxy", pair: front, header: asserted},
		{name: "front proxy by aliases", pair: front, header: aliased},
		// This cluster allows anonymous requests, as by default. Fairlead's own default is not to.
		{name: "nothing", here: http.StatusUnauthorized},
		{name: "nothing and forged headers", header: forgeries(), here: http.StatusUnauthorized},
		{name: "another scheme", header: http.Header{"Authorization": {"Basic YWxpY2U6YWxpY2U="}}, here: http.StatusUnauthorized},
		{name: "certificate and token", pair: dave, header: alice},
		{name: "foreign certificate and good token", pair: foreign, header: alice},
		{name: "foreign certificate and forged headers", pair: foreign, header: forgeries()},
		{name: "ended certificate", pair: past},
		{name: "bad token", header: bad},
		{name: "front proxy without user", pair: front},
		{name: "front proxy under another name", pair: otherFront, header: asserted},
		{name: "user under the front proxy's name", pair: impostor, header: asserted},
		{name: "impersonation by certificate", pair: admin, header: impersonating},
		{name: "impersonation by a front proxy's user", pair: front, header: with(impersonating, http.Header{"X-Remote-User": {"root"}, "X-Remote-Group": {masters}})},
		{name: "impersonation of a ServiceAccount", pair: admin, header: http.Header{"Impersonate-User": {"system:serviceaccount:default:default"}}},
		{name: "impersonation that is not allowed", header: with(impersonating, alice)},
		{name: "impersonation without a user", pair: admin, header: http.Header{"Impersonate-Group": {"dev"}}, here: http.StatusBadRequest}, // kube-apiserver 1.34 says 500
	}
}

// testRow compares Fairlead with kube-apiserver for one caller: the user that the extension server
// sees, and the user at the local apiserver.
func testRow(t *testing.T, q *quay, c row, proto string) {
	v := visit{proto: proto, pair: c.pair, header: c.header, method: http.MethodGet, path: widget}
	past, byThem := q.visit(t, q.EndpointOf(0), v)
	here, byUs := q.visit(t, q.server, v)
	want := past.Code
	if c.here != 0 {
		want = c.here
	}
	if here.Code != want {
		t.Errorf("for the extension server: %d, want %d (directly %d)\n%s\n%s", here.Code, want, past.Code, here.Body, past.Body)
	}
	must.Be(t, (byUs != nil) == (want == http.StatusOK), "the extension server received %v", byUs)
	if byUs != nil {
		got, expected := identity(byUs), identity(byThem)
		if !q.uids {
			delete(expected, "x-remote-uid") // kube-apiserver sends it although this extension server does not trust it
		}
		for _, forwarded := range []string{"x_remote_user", "x_remote_group", "x-remote_user", "x_remote-group", "x-remote-anything", "proxy-authorization"} {
			delete(expected, forwarded) // by kube-apiserver, not by Fairlead
		}
		strip(q, got, "x-remote-extra-authentication.kubernetes.io%2fcredential-id")
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("for the extension server (- by kube-apiserver, + here):\n%s", diff)
		}
		if byUs.PeerName != "front-proxy-client" || !byUs.Verified {
			t.Errorf("it came with the certificate of %q, or an invalid one", byUs.PeerName)
		}
		token := strings.TrimPrefix(c.header.Get("Authorization"), "Bearer ")
		if sent := fmt.Sprint(byUs.Header); token != "" && strings.Contains(sent, token) {
			t.Errorf("the token was forwarded: %s", sent)
		}
	}

	v.method, v.path, v.body = http.MethodPost, reviews, review
	past, _ = q.visit(t, q.EndpointOf(0), v)
	here, _ = q.visit(t, q.server, v)
	must.Be(t, here.Code == past.Code, "for the local apiserver: %d, directly %d\n%s\n%s", here.Code, past.Code, here.Body, past.Body)
	user := whoIs(t, here)
	strip(q, user.Extra, credential)
	if diff := cmp.Diff(whoIs(t, past), user, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("for the local apiserver (- directly, + here):\n%s", diff)
	}
	if want == http.StatusOK {
		want = http.StatusForbidden // nobody here may read Fairlead's pages
	}
	for path, e := range map[string]cluster.Endpoint{"/fairlead/status": q.server, "/status": q.front.Admin} {
		v.method, v.path, v.body = http.MethodGet, path, ""
		own, _ := q.visit(t, e, v)
		if named := fmt.Sprintf(`User \"%s\" cannot get path`, user.Username); own.Code != want || byUs != nil && !strings.Contains(own.Body, named) {
			t.Errorf("%s: %d %s, want %d of %s", path, own.Code, own.Body, want, user.Username)
		}
	}
}

func whoIs(t *testing.T, r ask.Reply) authenticationv1.UserInfo {
	t.Helper()
	var a authenticationv1.SelfSubjectReview
	if r.Code == http.StatusCreated {
		must.Do(t, json.Unmarshal([]byte(r.Body), &a))
	}
	return a.Status.UserInfo
}
