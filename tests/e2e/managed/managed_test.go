//go:build e2e

package managed

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// TestManaged follows the steps of docs/managed.md in order and checks their results.
func TestManaged(t *testing.T) {
	w := newWorld(t, 1)
	w.must(t, "kubectl create namespace wardle; kubectl create namespace managed; kubectl apply -f -", "<<'EOF'\n"+people+"\nEOF")
	steps := suite.Cases[*world]{
		{"preflight", testPreflight},
		{"certificates", testCertificates},
		{"overlay", testOverlay},
		{"extension server", testExtensionServer},
		{"lint", testLint},
		{"missing right", testMissingRight},
		{"impersonation", testImpersonation},
		{"clients", testClients},
		{"identity", testIdentity},
		{"flunders", testFlunders},
		{"several registries", testSeveral},
		{"renewal", testTakenUp},
		{"rules", testRules},
		{"other products", testOthers},
	}
	for _, s := range steps {
		if !t.Run(s.Name, func(t *testing.T) { s.Run(t, w) }) && w.front == nil {
			return // the other steps need Fairlead
		}
	}
}

// people are the accounts of the cases: the ServiceAccount robot, boss, who may impersonate, and
// those who may use flunders.
const people = `
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
---
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: managed, name: robot}}
`

// testPreflight looks at a cluster without Fairlead, and prints what the document shows.
func testPreflight(t *testing.T, w *world) {
	out := w.must(t, w.blocks[0])
	page := string(must.Get(os.ReadFile("../../../docs/managed.md"))(t))
	shown := regexp.MustCompile("(?s)```text\n(.*?)…\n```").FindStringSubmatch(page)[1]
	if !regexp.MustCompile("^"+strings.ReplaceAll(regexp.QuoteMeta(shown), "…", ".*")).MatchString(out) || strings.Contains(out, "error: ") {
		t.Errorf("it prints\n%s\nand the document shows\n%s", out, shown)
	}
}

// testMissingRight takes one right away: an administrator is told which, and what that breaks.
func testMissingRight(t *testing.T, w *world) {
	const lint = "kubectl fairlead lint --local-identity=impersonate --allow-loopback-backends"
	const object = "error: deploy/base/rbac.yaml:15: ClusterRole system:fairlead: " + accountName + " may not create subjectaccessreviews.authorization.k8s.io: "
	w.must(t, `kubectl patch clusterrole system:fairlead --type=json -p '[{"op": "remove", "path": "/rules/5"}]'`)
	suite.Eventually(t, soon, "reported", func() (bool, string) {
		a := w.follow(t, lint)
		return a.Code == 1 && strings.Contains(a.Out, object) && strings.Count(a.Out, "error: ") == 1, a.Out
	})
	w.must(t, "kubectl apply -k deploy/base") // as it says
	suite.Eventually(t, soon, "granted again", func() (bool, string) {
		a := w.follow(t, lint)
		return a.Code == 0 && !strings.Contains(a.Out, "rbac.yaml"), a.Out
	})
}

// testImpersonation takes the right to impersonate away, and then grants it for some names only.
func testImpersonation(t *testing.T, w *world) {
	says := func(when, text string) {
		t.Helper()
		const asked = 90 * time.Second // every 50 to 60 s
		suite.Eventually(t, asked, when, func() (bool, string) {
			_, body := w.ask(t, w.front, passport{cred: w.StaticToken("admin")}, http.MethodGet, "/fairlead/status", "")
			return strings.Contains(body, text), body
		})
	}
	const failed = `"message": "Fairlead may not impersonate users (deploy/overlays/managed/rbac.yaml:8); impersonate groups (`
	const some = `"message": "may not impersonate users of every name (deploy/overlays/managed/rbac.yaml:8), which is right if only some are granted"`
	w.must(t, "kubectl delete clusterrolebinding system:fairlead-impersonate")
	says("nobody can be impersonated", failed)
	w.must(t, "kubectl create clusterrole few --verb=impersonate --resource=users,groups --resource-name=dave --resource-name=dev; "+
		"kubectl create clusterrole ids --verb=impersonate --resource=userextras.authentication.k8s.io/authentication.kubernetes.io/credential-id; "+
		"kubectl create clusterrole crds --verb=watch --resource=customresourcedefinitions.apiextensions.k8s.io; "+
		"for r in few ids crds; do kubectl create clusterrolebinding $r --clusterrole=$r --serviceaccount=kube-system:fairlead; done")
	says("for some names", some)
	w.must(t, "kubectl apply -k deploy/own; kubectl delete clusterrolebinding few ids crds")
}

func testOverlay(t *testing.T, w *world) {
	w.must(t, w.blocks[2])
	w.front = w.start(t, "fairlead")
}

// testExtensionServer starts the sample extension server with the flags of docs/managed.md. This
// cluster's aggregator has no CA to add to their file.
func testExtensionServer(t *testing.T, w *world) {
	w.must(t, w.blocks[3])
	page := must.Get(os.ReadFile("../../../docs/managed.md"))(t)
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
	if out := w.must(t, w.blocks[4], "--allow-loopback-backends"); out != "" {
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
	out := w.must(t, "export KUBECONFIG="+mine+"\n"+w.blocks[5])
	for _, want := range []string{"Username    admin", "v1beta1.wardle.example.com"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

const flunders = "/apis/wardle.example.com/v1beta1/namespaces/managed/flunders"

// testFlunders reads objects of the extension server, which the cluster's own aggregator cannot reach.
func testFlunders(t *testing.T, w *world) {
	for _, p := range passports(t, w) {
		code, body := w.ask(t, w.front, p, "GET", flunders, "")
		if may := p.status == 0 && p.user != "lone"; may != (code == http.StatusOK) || !may && code != http.StatusForbidden && code != http.StatusUnauthorized {
			t.Errorf("%s: %d %s, may: %t", p.name, code, body, may)
		}
	}
	// kube-apiserver calls a review with this selector invalid: the caller is told so.
	dave := passport{cred: w.issue(t, w.users, "dave", "dev")}
	if code, body := w.ask(t, w.front, dave, "GET", flunders+"?fieldSelector==x", ""); code != http.StatusForbidden || !strings.Contains(body, "is invalid: ") {
		t.Errorf("a selector without a key: %d %s", code, body)
	}
	if _, body := w.ask(t, w.front, passport{cred: w.StaticToken("admin")}, "GET", "/fairlead/status", ""); strings.Contains(body, `"status": "failed"`) {
		t.Errorf("a check fails: %s", body)
	}
	direct := &cluster.Front{Endpoint: w.Endpoint()}
	if code, body := w.ask(t, direct, passport{cred: w.StaticToken("admin")}, "GET", flunders, ""); code < 400 {
		t.Errorf("past Fairlead: %d %s", code, body)
	}
}

// soon is how long a change may take to be known everywhere.
const soon = 30 * time.Second

// ours are APIServices of a directory, one with a URL and one with a Service of the cluster.
const ours = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.ours.example.com, annotations: {fairlead.dev/url: "https://127.0.0.1:%[1]d"}}
spec: {group: ours.example.com, version: v1, groupPriorityMinimum: 1000, versionPriority: 100, caBundle: %[2]s, service: {namespace: several, name: none}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.both.example.com}
spec: {group: both.example.com, version: v1, groupPriorityMinimum: 1000, versionPriority: 100, caBundle: %[2]s, service: {namespace: several, name: here, port: %[1]d}}
`

// testSeveral uses a directory in addition to the cluster's own APIServices. Fairlead forwards
// requests for those in the directory, the cluster's own aggregator for the rest.
func testSeveral(t *testing.T, w *world) {
	ca := pki.NewCA("several-ca")
	caFile, _, err := ca.WriteFiles(t.TempDir(), "ca")
	must.Do(t, err)
	here := extension.Start(t, extension.Config{CA: ca, RequestHeaderCA: suite.Pool(t, filepath.Join(w.folder, "requestheader.crt")), GroupVersions: []string{"ours.example.com/v1", "both.example.com/v1"}, Names: []string{"here.several.svc"}})
	there := extension.Start(t, extension.Config{CA: ca, RequestHeaderCA: suite.Pool(t, w.PKI.FrontProxy.CertFile), GroupVersions: []string{"theirs.example.com/v1", "both.example.com/v1"}, Names: []string{"there.several.svc"}})
	register := func(service string, server *extension.Server, groupVersions ...string) int {
		must.Do(t, w.Register(t.Context(), cluster.Backend{Namespace: "several", Service: service, Port: server.Port(), CAFile: caFile, GroupVersions: groupVersions}))
		return server.Port()
	}
	register("there", there, "theirs.example.com/v1", "both.example.com/v1")
	text := fmt.Sprintf(ours, register("here", here), base64.StdEncoding.EncodeToString(ca.PEM()))
	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "ours.yaml"), []byte(text), 0o600))
	front := w.start(t, "several", "--registry=dir:"+folder+",kubernetes")
	admin := passport{cred: w.StaticToken("admin")}
	for _, c := range []struct {
		group  string
		server *extension.Server
		peer   string
	}{{"ours", here, "fairlead"}, {"both", here, "fairlead"}, {"theirs", there, "front-proxy-client"}} {
		path := "/apis/" + c.group + ".example.com/v1/namespaces/default/widgets"
		suite.Eventually(t, soon, path, func() (bool, string) {
			code, body := w.ask(t, front, admin, "GET", path, "")
			return code == 200, body
		})
		if !slices.ContainsFunc(c.server.Requests(), func(r extension.Request) bool {
			return r.Target == path && r.PeerName == c.peer && r.Header.Get("X-Remote-User") == "admin"
		}) {
			t.Errorf("%s did not arrive from %s", path, c.peer)
		}
	}
	for object, want := range map[string]string{"v1.ours.example.com": "all checks passed", "v1.theirs.example.com": "Local APIServices are always available", "v1.both.example.com": `"name":"here"`} {
		if code, body := w.ask(t, front, admin, "GET", "/apis/apiregistration.k8s.io/v1/apiservices/"+object, ""); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %q", object, code, body, want)
		}
	}
}
