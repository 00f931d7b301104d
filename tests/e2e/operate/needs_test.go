//go:build e2e

package operate

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// noticed is how long a change of rights may take to be seen: a minute between two questions, and
// what kube-apiserver's own RBAC takes.
const noticed = 70 * time.Second

// testNeeds takes rights away from a Fairlead with an account of its own: everything that an
// operator may look at says so, and what fails without them; and all is well when they are back.
func testNeeds(t *testing.T, w *world) {
	n := &needing{world: w, roles: strings.NewReplacer(
		"name: system:fairlead}", "name: system:needs}", "name: fairlead, namespace: kube-system", "name: needs, namespace: kube-system",
		"fairlead-authentication-reader", "needs-authentication-reader",
	).Replace(read(t, "../../../deploy/base/rbac.yaml"))}
	w.ask(t, "create serviceaccount -n kube-system needs")
	w.apply(t, n.roles)
	file := filepath.Join(w.dir, "needs.kubeconfig")
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(file, cluster.Credentials{Token: suite.Token(t, w.core, "kube-system", "needs")}))
	n.args = []string{"--kubeconfig=" + file}
	t.Run("reviews", n.testReviews)
	t.Run("ConfigMap", n.testConfigMap)
}

type needing struct {
	*world
	roles string
	args  []string
}

// status runs the command, and returns its first line and its exit code.
func (n *needing) status(t *testing.T, front *cluster.Front, c cluster.Credentials) (string, int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, front.Endpoint.WriteKubeconfig(file, c))
	a := command(t, "", n.fairlead, "status", "v1.apps", "--kubeconfig", file) // other cases' APIServices may be away
	line, _, _ := strings.Cut(a.Out+a.Errs, "\n")
	return line, a.Code
}

const served = "NAME " // begins what the status of a name says while all is well

// says waits until the command says that, and exits with 3 unless all is well.
func (n *needing) says(t *testing.T, front *cluster.Front, want string) {
	t.Helper()
	suite.Eventually(t, noticed, "status: "+want, func() (bool, string) {
		line, got := n.status(t, front, n.Admin())
		return strings.HasPrefix(line, want) && got == map[bool]int{true: 0, false: 3}[want == served], fmt.Sprint(got, " ", line)
	})
}

func (n *needing) shows(t *testing.T, e cluster.Endpoint, path string, wants ...string) {
	t.Helper()
	_, body := n.get(t, e, path, "")
	check.Has(t, body, wants...)
}

func (n *needing) testReviews(t *testing.T) {
	front := must.Get(n.StartFairlead(t.Context(), cluster.Fairlead{Path: n.fairlead, Name: "needs", Args: n.args}))(t)
	n.says(t, front, served)
	n.shows(t, front.Admin, "/readyz?verbose", "readyz check passed", "[+]rights ok", "[+]reviews ok", "[+]clock ok", "[+]local-apiserver ok")
	jane := suite.Token(t, n.core, "kube-system", "needs") // any user without the right to do something
	n.serves(t, noticed, front.Endpoint, "/apis", jane)
	n.ask(t, `patch clusterrole system:needs --type=json -p [{"op":"remove","path":"/rules/5"}]`)
	n.says(t, front, "Users without system:masters get 503 from extension servers and for discovery: Fairlead may not create subjectaccessreviews.authorization.k8s.io (deploy/base/rbac.yaml:15)")
	n.shows(t, front.Admin, "/metrics", `fairlead_ready{check="rights"} 0`, `fairlead_ready{check="users"} 0`, `fairlead_ready{check="readyz"} 1`, `fairlead_ready{check="clock"} 1`)
	n.shows(t, front.Admin, "/readyz?verbose", "readyz check passed", "[-]rights failed, which does not end readiness: reason withheld")
	n.wants(t, http.StatusInternalServerError, front.Admin, "/readyz/rights", "")
	n.shows(t, front.Endpoint, "/fairlead/", "may not create subjectaccessreviews.authorization.k8s.io (deploy/base/rbac.yaml:15)", "kubectl describe clusterrole system:fairlead")
	suite.Eventually(t, noticed, "refused", func() (bool, string) {
		code, body := n.get(t, front.Endpoint, "/apis", jane)
		return code == http.StatusServiceUnavailable, fmt.Sprint(code, " ", body)
	})
	suite.Eventually(t, 10*time.Second, "reviews fail", func() (bool, string) {
		_, body := n.get(t, front.Admin, "/metrics", "")
		return strings.Contains(body, `fairlead_ready{check="reviews"} 0`), body
	})
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, front.Endpoint.WriteKubeconfig(file, n.Admin()))
	a := command(t, "", n.fairlead, "explain", "/apis", "--as=jane", "--kubeconfig", file)
	check.Same(t, 3, a.Code, "exit code: %s", a.Errs)
	check.Has(t, a.Out, "503", "rights: Fairlead may not create subjectaccessreviews.authorization.k8s.io (deploy/base/rbac.yaml:15)", "apply your kustomization with deploy/base/rbac.yaml again")
	n.apply(t, n.roles)
	n.serves(t, noticed, front.Endpoint, "/apis", jane)
	n.says(t, front, served)
	n.shows(t, front.Admin, "/metrics", `fairlead_ready{check="rights"} 1`, `fairlead_ready{check="reviews"} 1`, `fairlead_ready{check="users"} 1`)
	must.Do(t, front.Part.Stop(time.Minute))
}

// testConfigMap starts a Fairlead that may not read the ConfigMap: it never blames a caller for
// that, and is ready once it may.
func (n *needing) testConfigMap(t *testing.T) {
	n.ask(t, "delete rolebinding -n kube-system needs-authentication-reader")
	alice := cluster.Credentials{Pair: must.Get(n.PKI.Client.Issue("alice", cluster.Leaf{User: "alice"}))(t)}
	for _, where := range []string{"file", "ConfigMap"} {
		args := n.args
		if where == "ConfigMap" {
			args = append(args, "--client-ca-file=", "--requestheader-client-ca-file=", "--requestheader-allowed-names=", "--authentication-configmap")
		}
		front := must.Get(n.StartFairlead(t.Context(), cluster.Fairlead{Path: n.fairlead, Name: "unread-" + where, Args: args, Ready: "/livez"}))(t)
		request := func() (int, string) {
			client := suite.Client(t, front.Endpoint, alice)
			defer client.CloseIdleConnections()
			reply := must.Get(ask.Do(t.Context(), client, http.MethodGet, front.Endpoint.URL+"/api/v1/namespaces", nil, ""))(t)
			return reply.Code, reply.Body
		}
		suite.Eventually(t, 30*time.Second, where+": the ConfigMap is named", func() (bool, string) {
			code, body := request()
			return code == 503 && strings.Contains(body, "extension-apiserver-authentication"), fmt.Sprint(code, " ", body)
		})
		n.wants(t, http.StatusInternalServerError, front.Admin, "/readyz", "")
		if where == "file" { // with the other, no certificate can be verified, nor that of an operator
			n.says(t, front, "This replica takes no requests: authentication-configmap: Fairlead may not list configmaps extension-apiserver-authentication in namespace kube-system (deploy/base/rbac.yaml:26)")
			n.shows(t, front.Admin, "/metrics", `fairlead_ready{check="authentication-configmap"} 0`, `fairlead_ready{check="readyz"} 0`)
		}
		n.apply(t, n.roles)
		suite.Eventually(t, noticed, where+": forbidden, not unauthorized", func() (bool, string) {
			code, body := request()
			must.Be(t, code != http.StatusUnauthorized, "%s: %s", where, body)
			return code == http.StatusForbidden, fmt.Sprint(code, " ", body)
		})
		n.says(t, front, served)
		n.ask(t, "delete rolebinding -n kube-system needs-authentication-reader")
		must.Do(t, front.Part.Stop(time.Minute))
	}
}
