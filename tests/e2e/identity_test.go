//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// person is a way to authenticate.
type person struct {
	name string
	cred cluster.Credentials
	args []string // impersonation
}

// people returns all of them, with a ServiceAccount of namespace ns.
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

// testIdentity compares the permissions that the cluster reports through Fairlead and directly.
// testExtension compares the identities.
func testIdentity(t *testing.T, w *world) {
	ns := w.namespace(t)
	for _, p := range people(t, w, ns) {
		t.Run("can-i list as "+p.name, func(t *testing.T) {
			args := append([]string{"auth", "can-i", "--list", "-n", ns}, p.args...)
			through, past := w.as(t, w.server, p.cred).run(t, args...), w.as(t, w.EndpointOf(0), p.cred).run(t, args...)
			if through != past {
				t.Errorf("(- directly, + here):\n%s", cmp.Diff(past, through))
			}
		})
	}
	t.Run("roles rule both kinds alike", func(t *testing.T) { testRoles(t, w) })
	t.Run("a bad token is nobody", func(t *testing.T) {
		for _, args := range [][]string{{"get", "configmaps"}, {"get", "flunders"}, {"auth", "whoami"}} {
			w.as(t, w.server, cluster.Credentials{Token: "not-a-token"}).fail(t, "You must be logged in to the server", "", args...)
		}
	})
	t.Run("impersonation must be allowed", func(t *testing.T) {
		for _, k := range kinds() {
			w.as(t, w.server, w.StaticToken("bob")).fail(t, "cannot impersonate", "", "get", k.name, "-n", ns, "--as=carol")
		}
	})
}

// testRoles gives a role to each person and checks what they may do with local and remote objects.
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
			// The authorizer learns of a new binding by its watch, and Fairlead may cache a refusal
			// for 10 s.
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
