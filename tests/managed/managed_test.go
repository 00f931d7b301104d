//go:build e2e

package managed

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// TestManaged follows the steps of docs/managed.md in order and checks their results.
func TestManaged(t *testing.T) {
	w := newWorld(t)
	w.must(t, "kubectl create namespace wardle; kubectl create namespace managed; kubectl apply -f -", "<<'EOF'\n"+people+"\nEOF")
	steps := []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"certificates", testCertificates},
		{"overlay", testOverlay},
		{"extension server", testExtensionServer},
		{"lint", testLint},
		{"clients", testClients},
		{"identity", testIdentity},
		{"flunders", testFlunders},
		{"several registries", testSeveral},
		{"renewal", testTakenUp},
		{"rules", testRules},
		{"other products", testOthers},
	}
	for _, s := range steps {
		if !t.Run(s.name, func(t *testing.T) { s.run(t, w) }) && w.front == nil {
			return // the other steps need Fairlead
		}
	}
}

// people are the accounts of the cases: the ServiceAccount robot, boss, who may impersonate, and
// those who may use flunders.
const people = `
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: managed, name: robot}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: impersonator}
rules: [{apiGroups: ["", authentication.k8s.io], resources: ["*"], verbs: [impersonate]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: impersonator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: impersonator}
subjects: [{kind: User, name: boss}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: flunders}
rules: [{apiGroups: [wardle.example.com], resources: [flunders], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: managed, name: flunders}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: flunders}
subjects: [{kind: Group, name: dev}, {kind: User, name: "oidc:jane"}, {kind: ServiceAccount, namespace: managed, name: robot}, {kind: User, name: carol}]
`

func testOverlay(t *testing.T, w *world) {
	w.must(t, w.blocks[1])
	w.front = w.start(t, "fairlead")
}

// testExtensionServer starts the sample extension server with the flags of docs/managed.md. This
// cluster's aggregator has no CA to add to their file.
func testExtensionServer(t *testing.T, w *world) {
	w.must(t, w.blocks[2])
	page := must.Get(os.ReadFile("../../docs/managed.md"))(t)
	var flags []string
	for _, f := range regexp.MustCompile(`(?m)^ *(--requestheader-(?:client-ca-file|allowed-names)=\S+)$`).FindAllStringSubmatch(string(page), -1) {
		flags = append(flags, strings.Replace(f[1], "/etc/fairlead-requestheader", w.folder, 1))
	}
	if len(flags) != 2 {
		t.Fatalf("the page has flags %q", flags)
	}
	must.Get(w.StartSampleAPIServer(t.Context(), flags...))(t)
	suite.Eventually(t, soon, "served", func() (bool, string) {
		code, body := w.ask(t, w.front, passport{cred: w.StaticToken("admin")}, "GET", "/apis/wardle.example.com/v1beta1", "")
		return code == 200, body
	})
}

func testLint(t *testing.T, w *world) {
	if out := w.must(t, w.blocks[3], "--allow-loopback-backends"); out != "" {
		t.Errorf("lint reports:\n%s", out)
	}
	pair := w.PKI.FrontProxyPair
	a := w.follow(t, "kubectl fairlead lint --kubeconfig=$KUBECONFIG --local-identity=impersonate --allow-loopback-backends --proxy-client-cert-file="+pair.CertFile, "--proxy-client-key-file="+pair.KeyFile)
	if a.Code != 1 || !strings.Contains(a.Out, `does not trust the CA "front-proxy-ca" of the proxy client certificate; start it with --requestheader-client-ca-file`) {
		t.Errorf("with a certificate that it does not trust: exit code %d\n%s%s", a.Code, a.Out, a.Errs)
	}
}

func testClients(t *testing.T, w *world) {
	mine := filepath.Join(w.Dir(), "client.kubeconfig")
	w.must(t, "cp $KUBECONFIG "+mine)
	out := w.must(t, "export KUBECONFIG="+mine+"\n"+w.blocks[4])
	for _, want := range []string{"Username    admin", "v1beta1.wardle.example.com"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

const flunders = "/apis/wardle.example.com/v1beta1/namespaces/managed/flunders"

// testFlunders reads objects of the extension server, which the cluster's own aggregator cannot
// reach.
func testFlunders(t *testing.T, w *world) {
	for _, p := range passports(t, w) {
		code, body := w.ask(t, w.front, p, "GET", flunders, "")
		if may := p.status == 0 && p.user != "lone"; may != (code == http.StatusOK) || !may && code != http.StatusForbidden && code != http.StatusUnauthorized {
			t.Errorf("%s: %d %s, may: %t", p.name, code, body, may)
		}
	}
	direct := &cluster.Front{Endpoint: w.Endpoint()}
	if code, body := w.ask(t, direct, passport{cred: w.StaticToken("admin")}, "GET", flunders, ""); code < 400 {
		t.Errorf("past Fairlead: %d %s", code, body)
	}
}

// soon is how long a change may take to be known everywhere.
const soon = 30 * time.Second
