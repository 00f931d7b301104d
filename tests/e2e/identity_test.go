//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// person is one way of being somebody.
type person struct {
	name string
	cred cluster.Credentials
	args []string // impersonation
}

// people returns everyone that the cases can be, with a ServiceAccount of namespace ns among them.
func people(t *testing.T, w *world, ns string) []person {
	t.Helper()
	kc := w.admin(t)
	kc.run(t, "create", "serviceaccount", "robot", "-n", ns)
	token := strings.TrimSpace(kc.run(t, "create", "token", "robot", "-n", ns))
	dave := must.Get(w.PKI.Client.Issue("dave-"+ns, cluster.Leaf{User: "dave", Groups: []string{"dev", "night-shift"}}))(t)
	return []person{
		{name: "client certificate", cred: cluster.Credentials{Pair: dave}},
		{name: "ServiceAccount token", cred: cluster.Credentials{Token: token}},
		{name: "static token", cred: w.StaticToken("alice")},
		{name: "JWT", cred: cluster.Credentials{Token: w.tokens.Token(t, map[string]any{"jti": "jti-" + ns})}},
		{name: "impersonated user", cred: w.Admin(), args: []string{"--as=carol"}},
		{name: "impersonated user with groups and uid", cred: w.StaticToken("admin"), args: []string{"--as=carol", "--as-group=dev", "--as-group=ops", "--as-uid=uid-carol"}},
		{name: "impersonated ServiceAccount", cred: w.Admin(), args: []string{"--as=system:serviceaccount:" + ns + ":robot"}},
	}
}

// testIdentity asks the cluster who it thinks one is, and what one may do, and compares with what
// kube-apiserver says directly.
func testIdentity(t *testing.T, w *world) {
	ns := w.namespace(t)
	for _, p := range people(t, w, ns) {
		ask := func(t *testing.T, args ...string) (through, past string) {
			args = append(args, p.args...)
			return w.as(t, w.server, p.cred).run(t, args...), w.as(t, w.EndpointOf(0), p.cred).run(t, args...)
		}
		t.Run("whoami as "+p.name, func(t *testing.T) {
			through, past := ask(t, "auth", "whoami", "-o", "json")
			if got, want := userOf(t, through), userOf(t, past); !cmp.Equal(got, want) {
				t.Errorf("(- directly, + here):\n%s", cmp.Diff(want, got))
			}
		})
		t.Run("can-i list as "+p.name, func(t *testing.T) {
			through, past := ask(t, "auth", "can-i", "--list", "-n", ns)
			if through != past {
				t.Errorf("(- directly, + here):\n%s", cmp.Diff(past, through))
			}
		})
	}
	t.Run("roles rule both kinds alike", func(t *testing.T) { testRoles(t, w) })
	t.Run("a bad token is nobody", func(t *testing.T) { testBadToken(t, w) })
	t.Run("a foreign certificate is nobody", func(t *testing.T) { testForeignCertificate(t, w) })
	t.Run("impersonation must be allowed", func(t *testing.T) {
		for _, k := range kinds() {
			w.as(t, w.server, w.StaticToken("bob")).fail(t, "cannot impersonate", "", "get", k.name, "-n", ns, "--as=carol")
		}
	})
}

func userOf(t *testing.T, review string) authenticationv1.UserInfo {
	t.Helper()
	var r authenticationv1.SelfSubjectReview
	if err := json.Unmarshal([]byte(review), &r); err != nil {
		t.Fatalf("%v\n%s", err, review)
	}
	if r.Status.UserInfo.Username == "" {
		t.Fatalf("nobody: %s", review)
	}
	return r.Status.UserInfo
}

// testRoles gives a role to each person and watches what they may do with objects here and there.
func testRoles(t *testing.T, w *world) {
	ns, kc := w.namespace(t), w.admin(t)
	kc.run(t, "create", "role", "reader", "-n", ns, "--verb=get,list", "--resource=configmaps,flunders.wardle.example.com")
	kc.run(t, "create", "rolebinding", "readers", "-n", ns, "--role=reader", "--user=alice", "--user=carol", "--user=oidc:jane", "--group=night-shift", "--serviceaccount="+ns+":robot")
	for _, k := range kinds() {
		kc.feed(t, k.manifest("treasure", "gold"), "create", "-n", ns, "-f", "-")
	}
	for _, p := range people(t, w, ns) {
		who := w.as(t, w.server, p.cred)
		for _, k := range kinds() {
			// The authorizer's view of a new binding lags by its watch, and Fairlead may remember a
			// refusal for 10 s.
			args := append([]string{"get", k.name, "treasure", "-n", ns, "-o", k.jsonpath()}, p.args...)
			suite.Eventually(t, time.Minute, p.name+" may read "+k.name, func() (bool, string) {
				a := who.try(t, "", args...)
				return a.Code == 0 && a.Out == "gold", a.Errs
			})
			who.fail(t, "Forbidden", "", append([]string{"delete", k.name, "treasure", "-n", ns}, p.args...)...)
		}
	}
	for _, k := range kinds() {
		w.as(t, w.server, w.StaticToken("bob")).fail(t, "Forbidden", "", "get", k.name, "treasure", "-n", ns)
	}
}

func testBadToken(t *testing.T, w *world) {
	who := w.as(t, w.server, cluster.Credentials{Token: "not-a-token"})
	for _, k := range kinds() {
		who.fail(t, "You must be logged in to the server", "", "get", k.name, "-n", "default")
	}
	who.fail(t, "You must be logged in to the server", "", "auth", "whoami")
}

// A certificate of an authority that the cluster does not know authenticates nobody, whatever it
// claims, not even its members of system:masters.
func testForeignCertificate(t *testing.T, w *world) {
	foreign := must.Get(w.PKI.NewAuthority("foreign-ca"))(t)
	pair := must.Get(foreign.Issue("foreign-admin", cluster.Leaf{User: "admin", Groups: []string{"system:masters"}}))(t)
	past := must.Get(w.PKI.Client.Issue("past-admin", cluster.Leaf{User: "admin", Groups: []string{"system:masters"}, NotAfter: longAgo()}))(t)
	for _, p := range []cluster.Pair{pair, past} {
		who := w.as(t, w.server, cluster.Credentials{Pair: p})
		for _, k := range kinds() {
			who.fail(t, "You must be logged in to the server", "", "get", k.name, "-n", "default")
		}
	}
}
