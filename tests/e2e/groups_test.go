//go:build e2e

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// How often each request is measured, and the ClusterRoleBindings of others: 100 and 2,000 for docs/managed.md.
var (
	rounds   = flag.Int("rounds", 4, "rounds of TestGroups")
	bindings = flag.Int("bindings", 0, "ClusterRoleBindings of TestGroups, of which kube-apiserver looks at each for each group")
)

// A user in 300 groups, as directories have them, of whom three begin with team- (capsule-proxy#1028):
// what Fairlead's impersonation costs, and what --impersonate-groups-prefix changes. It prints medians.
func TestGroups(t *testing.T) {
	fairlead := suite.Build(t, t.TempDir())
	w := newWorld(t, impersonate, fairlead)
	kubeconfig := must.Get(w.Account(t.Context(), w.EndpointOf(1), "../../deploy", "managed"))(t)
	filtered := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: fairlead, Name: "filtered", Args: []string{
		"--kubeconfig=" + kubeconfig, "--local-identity=impersonate", "--impersonate-groups-prefix=team-",
	}}))(t)
	kc := w.admin(t)
	kc.Run(t, "create", "clusterrolebinding", "team", "--clusterrole=edit", "--group=team-2")
	kc.Run(t, "create", "clusterrolebinding", "lost", "--clusterrole=cluster-admin", "--group="+groups(300)[250])
	kc.Run(t, "create", "namespace", "moorings")
	kc.Soon(t, "the namespace has its ServiceAccount", "get", "-n", "moorings", "serviceaccount/default")
	node := must.Get(w.StartNode(t.Context(), w.server, "harbour", "127.0.0.1"))(t)
	must.Get(node.Run(t.Context(), w.core, "moorings", "buoy"))(t)
	user := func(n int) cluster.Credentials {
		return cluster.Credentials{Pair: must.Get(w.PKI.Client.Issue(fmt.Sprint("of-", n), cluster.Leaf{User: "dave", Groups: groups(n)}))(t)}
	}
	// Rights of constrained impersonation would need one review for all groups.
	kc.Run(t, "create", "clusterrole", "impersonator", "--verb=impersonate", "--resource=users,groups")
	kc.Run(t, "create", "clusterrolebinding", "impersonator", "--clusterrole=impersonator", "--user=boss")
	boss := cluster.Credentials{Pair: must.Get(w.PKI.Client.Issue("boss", cluster.Leaf{User: "boss"}))(t)}
	t.Run("arrive", func(t *testing.T) {
		for door, want := range map[cluster.Endpoint]int{w.Endpoint(): 300, w.server: 300, filtered.Endpoint: 3} {
			r := must.Get(ask.Do(t.Context(), suite.Client(t, door, user(300)), http.MethodPost, door.URL+reviews, nil, review))(t)
			var who authenticationv1.SelfSubjectReview
			must.Do(t, json.Unmarshal([]byte(r.Body), &who))
			got := slices.DeleteFunc(who.Status.UserInfo.Groups, func(g string) bool { return g == "system:authenticated" })
			check.Same(t, want, len(got), "groups of %s", who.Status.UserInfo.Username)
			err := ask.Serves(t.Context(), suite.Client(t, door, user(300)), door.URL+"/apis/rbac.authorization.k8s.io/v1/clusterroles")
			check.Same(t, want == 300, err == nil, "a right of a group that is not passed on")
		}
	})
	t.Run("exec", func(t *testing.T) {
		for _, door := range []cluster.Endpoint{w.server, filtered.Endpoint} {
			dave := w.as(t, door, user(300)) // the controller manager fills the role edit, some time after it has begun
			dave.Soon(t, "the role has all rights", "auth", "can-i", "create", "pods", "--subresource=exec", "-n", "moorings")
			check.Same(t, "yes\n", dave.Run(t, "exec", "-n", "moorings", "buoy", "--", "echo", "yes"), "exec")
			dave.Env = []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false"}
			check.Same(t, "yes\n", dave.Run(t, "exec", "-n", "moorings", "buoy", "--", "echo", "yes"), "exec by SPDY")
		}
	})
	const other = "---\n{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {generateName: other-}," +
		" roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: other-%d}]}\n"
	for _, bindings := range slices.Compact([]int{0, *bindings}) {
		for i := range bindings / 100 { // of others, a hundred at once
			var list strings.Builder
			for j := range 100 {
				fmt.Fprintf(&list, other, 100*i+j)
			}
			kc.Feed(t, list.String(), "create", "-f", "-")
		}
		for _, c := range []struct {
			name string
			door cluster.Endpoint
			n    int
		}{
			{"directly, 3 groups", w.Endpoint(), 3}, {"directly, 300 groups", w.Endpoint(), 300},
			{"3 groups", w.server, 3}, {"300 groups", w.server, 300}, {"300 groups, of whom 3 pass", filtered.Endpoint, 300},
		} {
			measure(t, w, fmt.Sprintf("%d bindings: %s", bindings, c.name), c.door, user(c.n), nil)
		}
		as := http.Header{"Impersonate-User": {"carol"}, "Impersonate-Group": groups(300)}
		measure(t, w, fmt.Sprintf("%d bindings: --as with 300 groups", bindings), w.server, boss, as)
	}
	// Constrained impersonation (v1.36) asks once for all groups, and remembers it; while rights of both kinds are
	// granted, kube-apiserver may stay with the other kind.
	kc.Feed(t, constrained, "apply", "-f", "-")
	kc.Run(t, "delete", "clusterrolebinding", "system:fairlead-impersonate")
	measure(t, w, "300 groups, by constrained impersonation", w.server, user(300), nil)
}

// constrained are the rights of constrained impersonation instead of those of deploy/overlays/managed.
const constrained = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: fairlead-constrained}
rules:
- {apiGroups: [authentication.k8s.io], resources: [users, groups, uids, userextras/authentication.kubernetes.io/credential-id], verbs: ["impersonate:user-info"]}
- {apiGroups: ["*"], resources: ["*"], verbs: ["impersonate-on:user-info:get", "impersonate-on:user-info:watch"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: fairlead-constrained}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: fairlead-constrained}
subjects: [{kind: ServiceAccount, namespace: kube-system, name: fairlead}]
`

// groups returns n names, of whom the last three begin with team-, the others look like Entra ID's.
func groups(n int) (all []string) {
	for i := range n - 3 {
		all = append(all, fmt.Sprintf("5f1c7a52-9d1e-4c43-8a27-%012d", i))
	}
	return append(all, "team-1", "team-2", "team-3")
}

// measure sends the same GET and watch again and again, over one connection.
func measure(t *testing.T, w *world, name string, door cluster.Endpoint, cr cluster.Credentials, header http.Header) {
	t.Helper()
	rounds := *rounds
	c, path := suite.Client(t, door, cr), door.URL+"/api/v1/namespaces/default"
	cloud := suite.Client(t, w.EndpointOf(1), w.StaticToken("admin"))
	checks := func() (n float64) {
		const checks = "apiserver_impersonation_authorization_attempts_total"
		for series, v := range must.Get(ask.Metrics(t.Context(), cloud, w.EndpointOf(1).URL))(t) {
			review := strings.HasPrefix(series, "apiserver_request_total{") && strings.Contains(series, `"subjectaccessreviews"`)
			if review || strings.HasPrefix(series, checks) {
				n += v
			}
		}
		return n
	}
	before := checks()
	timed := func(do func() error) (first, median time.Duration) {
		var all []time.Duration
		for range rounds {
			begun := time.Now()
			if err := do(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			all = append(all, time.Since(begun).Round(10*time.Microsecond))
		}
		first = all[0]
		slices.Sort(all)
		return first, all[rounds/2]
	}
	open := func(url string) func() error {
		return func() error {
			res, err := ask.Open(t.Context(), c, url, header)
			if err == nil {
				_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, max(res.ContentLength, 0)))
				err = res.Body.Close()
			}
			return err
		}
	}
	first, get := timed(open(path))
	per := (checks() - before) / float64(rounds)
	_, watch := timed(open(door.URL + "/api/v1/namespaces?watch=true&resourceVersion=0"))
	t.Logf("%s: first GET %v, median %v; watch %v; %.1f authorizations at kube-apiserver for each GET", name, first, get, watch, per)
}
