//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

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
	// here is Fairlead's status for a remote where it differs from kube-apiserver's on purpose. Zero means the same.
	here int
}

func with(h http.Header, more http.Header) http.Header {
	both := http.Header{}
	maps.Copy(both, h)
	maps.Copy(both, more)
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
	if (byUs != nil) != (want == http.StatusOK) {
		t.Fatalf("the extension server received %v", byUs)
	}
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
	if here.Code != past.Code {
		t.Fatalf("for the local apiserver: %d, directly %d\n%s\n%s", here.Code, past.Code, here.Body, past.Body)
	}
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
