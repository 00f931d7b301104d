//go:build e2e

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// testExtension checks what an extension server receives.
func testExtension(t *testing.T, q *quay) {
	callers := newCallers(t, q)
	// Parallel cases start when the sequential ones have ended, so none of them waits for a long
	// one.
	t.Run("streams", func(t *testing.T) { t.Parallel(); testStreams(t, q) })
	for _, proto := range q.protos() {
		for _, c := range callers.rows() {
			t.Run(c.name+" by "+proto, func(t *testing.T) { t.Parallel(); testRow(t, q, c, proto) })
		}
		t.Run("forged by "+proto, func(t *testing.T) { t.Parallel(); testForged(t, q, callers, proto) })
		t.Run("carried by "+proto, func(t *testing.T) { t.Parallel(); testCarried(t, q, callers, proto) })
		t.Run("answers by "+proto, func(t *testing.T) { t.Parallel(); testAnswers(t, q, callers, proto) })
	}
	t.Run("WebSocket token", func(t *testing.T) { t.Parallel(); testWebSocketToken(t, q) })
	t.Run("CVE-2018-1002105", func(t *testing.T) { t.Parallel(); testCVE20181002105(t, q, callers) })
}

// callers holds certificates and tokens of all kinds.
type callers struct {
	dave, past        cluster.Pair // of the client CA; past has expired
	foreign           cluster.Pair // of an untrusted CA
	front             cluster.Pair // a trusted front proxy
	otherFront        cluster.Pair // of the front-proxy CA, with a name that is not allowed
	impostor          cluster.Pair // of the client CA, with the front proxy's name
	admin             cluster.Pair
	robot, alice, bad string // tokens
	jane, elsewhere   string // JWTs, elsewhere for another audience
	masters           string // group of admin
}

func newCallers(t *testing.T, q *quay) *callers {
	t.Helper()
	issue := func(by *cluster.Authority, file string, l cluster.Leaf) cluster.Pair {
		return must.Get(by.Issue("caller-"+file, l))(t)
	}
	foreign := must.Get(q.PKI.NewAuthority("caller-foreign-ca"))(t)
	kc, ns := q.admin(t), q.namespace(t)
	kc.run(t, "create", "serviceaccount", "robot", "-n", ns)
	masters := "system:masters"
	if q.lane == impersonate {
		masters = "harbour-masters"
	}
	return &callers{
		dave:       issue(q.PKI.Client, "dave", cluster.Leaf{User: "dave", Groups: []string{"dev", "night-shift"}}),
		past:       issue(q.PKI.Client, "past", cluster.Leaf{User: "dave", Groups: []string{"system:masters"}, NotAfter: longAgo()}),
		foreign:    issue(foreign, "foreign", cluster.Leaf{User: "admin", Groups: []string{"system:masters"}}),
		front:      q.PKI.FrontProxyPair,
		otherFront: issue(q.PKI.FrontProxy, "other-front", cluster.Leaf{User: "other-proxy"}),
		impostor:   issue(q.PKI.Client, "impostor", cluster.Leaf{User: "front-proxy-client"}),
		admin:      q.PKI.Admin,
		robot:      strings.TrimSpace(kc.run(t, "create", "token", "robot", "-n", ns)),
		alice:      q.StaticToken("alice").Token,
		bad:        "not-a-token",
		jane:       q.tokens.Token(t, map[string]any{"jti": "jti-" + ns}),
		elsewhere:  q.tokens.Token(t, map[string]any{"aud": "elsewhere"}),
		masters:    masters,
	}
}

// row is a way to authenticate: a row of the design's table of identities, or a mixture of several.
type row struct {
	name   string
	pair   cluster.Pair
	header http.Header
	// here is Fairlead's status for a remote where it differs from kube-apiserver's on purpose.
	// Zero means the same.
	here int
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func with(h http.Header, more http.Header) http.Header {
	both := http.Header{}
	maps.Copy(both, h)
	maps.Copy(both, more)
	return both
}

func (c *callers) rows() []row {
	asserted := http.Header{
		"X-Remote-User": {"carol"}, "X-Remote-Group": {"dev", "night shift"}, "X-Remote-Extra-Scopes": {"a", "b"}, "X-Remote-Extra-Example.com%2fpath": {"c"},
	}
	impersonating := http.Header{
		"Impersonate-User": {"carol"}, "Impersonate-Group": {"dev", "ops"}, "Impersonate-Uid": {"uid-carol"}, "Impersonate-Extra-Scopes": {"all"},
	}
	return []row{
		{name: "certificate", pair: c.dave},
		{name: "ServiceAccount token", header: bearer(c.robot)},
		{name: "static token", header: bearer(c.alice)},
		{name: "JWT", header: bearer(c.jane)},
		{name: "JWT and certificate", pair: c.dave, header: bearer(c.jane)},
		{name: "JWT for another audience", header: bearer(c.elsewhere)},
		{name: "front proxy", pair: c.front, header: asserted},
		{name: "front proxy by aliases", pair: c.front, header: http.Header{"X-Harbour-User": {"carol"}, "X-Harbour-Group": {"dev"}, "X-Harbour-Extra-Scopes": {"a"}}},
		{name: "front proxy with a token of its user", pair: c.front, header: with(asserted, bearer(c.alice))},
		// This cluster allows anonymous requests, as by default. Fairlead's own default is not to.
		{name: "nothing", here: http.StatusUnauthorized},
		{name: "another scheme", header: http.Header{"Authorization": {"Basic YWxpY2U6YWxpY2U="}}, here: http.StatusUnauthorized},
		{name: "certificate and token", pair: c.dave, header: bearer(c.alice)},
		{name: "certificate and bad token", pair: c.dave, header: bearer(c.bad)},
		{name: "foreign certificate", pair: c.foreign},
		{name: "foreign certificate and good token", pair: c.foreign, header: bearer(c.alice)},
		{name: "foreign certificate and forged headers", pair: c.foreign, header: asserted},
		{name: "ended certificate", pair: c.past},
		{name: "ended certificate and good token", pair: c.past, header: bearer(c.alice)},
		{name: "bad token", header: bearer(c.bad)},
		{name: "empty token", header: http.Header{"Authorization": {"Bearer "}}, here: http.StatusUnauthorized},
		{name: "bad token and forged headers", header: with(asserted, bearer(c.bad))},
		{name: "front proxy without user", pair: c.front},
		{name: "front proxy without user and good token", pair: c.front, header: bearer(c.alice)},
		{name: "front proxy with groups only", pair: c.front, header: http.Header{"X-Remote-Group": {"system:masters"}}},
		{name: "front proxy under another name", pair: c.otherFront, header: asserted},
		{name: "user under the front proxy's name", pair: c.impostor, header: asserted},
		{name: "impersonation by certificate", pair: c.admin, header: impersonating},
		{name: "impersonation by token", header: with(impersonating, bearer("admin-token"))},
		{name: "impersonation by a front proxy's user", pair: c.front, header: with(impersonating, http.Header{"X-Remote-User": {"root"}, "X-Remote-Group": {c.masters}})},
		{name: "impersonation of a ServiceAccount", pair: c.admin, header: http.Header{"Impersonate-User": {"system:serviceaccount:default:default"}}},
		{name: "impersonation that is not allowed", header: with(impersonating, bearer(c.alice))},
		{name: "impersonation without a user", pair: c.admin, header: http.Header{"Impersonate-Group": {"dev"}}},
	}
}

const review = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`

// testRow compares Fairlead with kube-apiserver for one caller: the user that the extension server
// sees, and the user at the local apiserver.
func testRow(t *testing.T, q *quay, c row, proto string) {
	v := visit{proto: proto, pair: c.pair, header: c.header, method: http.MethodGet, path: widgetsPath + "/widget-000"}
	past, byThem := q.visit(t, q.EndpointOf(0), v)
	here, byUs := q.visit(t, q.server, v)
	want := past.status
	if c.here != 0 && q.lane != direct {
		want = c.here
	}
	if here.status != want {
		t.Errorf("for the extension server: %d, want %d (directly %d)\n%s\n%s", here.status, want, past.status, here.body, past.body)
	}
	if (byUs != nil) != (want == http.StatusOK) {
		t.Fatalf("the extension server received %v", byUs)
	}
	if byUs != nil {
		got, expected := identity(byUs), identity(byThem)
		if !q.uids {
			delete(expected, "x-remote-uid") // kube-apiserver sends it although this extension server does not trust it
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("for the extension server (- by kube-apiserver, + here):\n%s", diff)
		}
		if byUs.PeerName != "front-proxy-client" || !byUs.Verified {
			t.Errorf("it came with the certificate of %q, or an invalid one", byUs.PeerName)
		}
		for _, f := range byUs.Fields {
			if token := strings.TrimPrefix(c.header.Get("Authorization"), "Bearer "); token != "" && strings.Contains(f.Value, token) {
				t.Errorf("%s carries the token", f.Name)
			}
		}
	}

	v.method, v.path, v.body = http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", review
	v.header = with(c.header, http.Header{"Content-Type": {"application/json"}})
	past, _ = q.visit(t, q.EndpointOf(0), v)
	here, _ = q.visit(t, q.server, v)
	if here.status != past.status {
		t.Fatalf("for the local apiserver: %d, directly %d\n%s\n%s", here.status, past.status, here.body, past.body)
	}
	if diff := cmp.Diff(whoIs(t, past), whoIs(t, here)); diff != "" {
		t.Errorf("for the local apiserver (- directly, + here):\n%s", diff)
	}
}

func whoIs(t *testing.T, r reply) authenticationv1.UserInfo {
	t.Helper()
	var a authenticationv1.SelfSubjectReview
	if r.status == http.StatusCreated {
		must.Do(t, json.Unmarshal(r.body, &a))
	}
	return a.Status.UserInfo
}

// testForged adds fields that only a front proxy may send to the requests of others: they must have
// no effect, in any spelling and by any route.
func testForged(t *testing.T, q *quay, c *callers, proto string) {
	forgeries := map[string]visit{}
	for _, h := range []http.Header{
		{"X-Remote-User": {"system:admin"}},
		{"x-remote-user": {"system:admin"}},
		{"X-REMOTE-USER": {"system:admin"}},
		{"X-Remote-Group": {"system:masters"}},
		{"x-ReMoTe-gRoUp": {"system:masters", "system:nodes"}},
		{"X-Remote-Uid": {"0"}},
		{"X-Remote-Extra-Scopes": {"all"}},
		{"X-Remote-Extra-Authentication.kubernetes.io%2fcredential-Id": {"X509SHA256=0"}},
		{"X-Remote-Anything": {"x"}},
		{"X_Remote_User": {"system:admin"}, "X_Remote_Group": {"system:masters"}},
		{"X-Remote_User": {"system:admin"}, "X_Remote-Group": {"system:masters"}},
		{"x_remote_extra_scopes": {"all"}, "x_remote_uid": {"0"}},
		{"X-Harbour-User": {"system:admin"}, "x-harbour-group": {"system:masters"}, "X-Harbour-Extra-Scopes": {"all"}}, // aliases that this cluster trusts
		{"X_Harbour_User": {"system:admin"}, "X_Harbour_Group": {"system:masters"}},
		{"X-Remote-User": {""}, "X-Remote-Group": {""}},
	} {
		var names []string
		for name := range h {
			names = append(names, name)
		}
		forgeries[strings.Join(names, ", ")] = visit{header: h}
	}
	if proto == "http/1.1" {
		listed := http.Header{"Connection": {"X-Remote-User, X-Remote-Group, Authorization"}, "X-Remote-User": {"system:admin"}, "X-Remote-Group": {"system:masters"}}
		forgeries["listed in Connection"] = visit{header: listed}
		forgeries["listed in Connection alone"] = visit{header: http.Header{"Connection": {"x-remote-user, x-remote-group, x-remote-uid, x-remote-extra-scopes, audit-id"}}}
		forgeries["listed as kept alive"] = visit{header: http.Header{"Keep-Alive": {"X-Remote-User"}, "Te": {"trailers"}, "X-Remote-User": {"system:admin"}}}
	}
	forgeries["trailers"] = visit{trailer: http.Header{
		"X-Remote-User": {"system:admin"}, "x_remote_group": {"system:masters"}, "X-Harbour-Group": {"system:masters"}, "Impersonate-User": {"system:admin"},
	}}
	for _, by := range []struct {
		name   string
		pair   cluster.Pair
		header http.Header
	}{{"certificate", c.dave, http.Header{}}, {"token", cluster.Pair{}, bearer(c.alice)}} {
		honest := visit{proto: proto, pair: by.pair, header: by.header, method: http.MethodPost, path: widgetsPath + "/widget-000/echo", body: "hello"}
		_, plain := q.visit(t, q.server, honest)
		if plain == nil {
			t.Fatalf("the honest request by %s did not arrive", by.name)
		}
		asking := visit{proto: proto, pair: by.pair, method: http.MethodPost, path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: review}
		asking.header = with(by.header, http.Header{"Content-Type": {"application/json"}})
		answer, _ := q.visit(t, q.server, asking)
		for name, f := range forgeries {
			forged := honest
			forged.header, forged.trailer = with(by.header, f.header), f.trailer
			r, got := q.visit(t, q.server, forged)
			if got == nil {
				t.Errorf("%s by %s: %d, nothing arrived: %s", name, by.name, r.status, r.body)
				continue
			}
			if diff := cmp.Diff(identity(plain), identity(got)); diff != "" && q.lane != direct { // kube-apiserver forwards other spellings
				t.Errorf("%s by %s reached the extension server (- honest, + forged):\n%s", name, by.name, diff)
			}
			forged = asking
			forged.header, forged.trailer = with(asking.header, f.header), f.trailer
			r, _ = q.visit(t, q.server, forged)
			if diff := cmp.Diff(whoIs(t, answer), whoIs(t, r)); diff != "" || r.status != http.StatusCreated {
				t.Errorf("%s by %s reached the local apiserver, %d (- honest, + forged):\n%s", name, by.name, r.status, diff)
			}
		}
	}
	for name, f := range forgeries {
		v := visit{proto: proto, header: with(bearer(c.bad), f.header), method: http.MethodPost, path: widgetsPath + "/widget-000/echo", body: "hello", trailer: f.trailer}
		if r, got := q.visit(t, q.server, v); r.status != http.StatusUnauthorized || got != nil {
			t.Errorf("%s with a bad token: %d, arrived: %v", name, r.status, got)
		}
	}
}

// tokenProtocol returns the WebSocket subprotocol by which browsers, which cannot set headers, send
// a token.
func tokenProtocol(token string) string {
	return "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token))
}
