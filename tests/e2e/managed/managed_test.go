//go:build e2e

package managed

import (
	"crypto/x509"
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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
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

// testImpersonation takes the right to impersonate away, and then grants it for some names only.
func testImpersonation(t *testing.T, w *world) {
	says := func(when, text string) {
		t.Helper()
		const asked = 150 * time.Second // every 50 to 60 s, once perhaps before kube-apiserver knows
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
	must.Be(t, len(flags) == 2, "the page has flags %q", flags)
	must.Get(w.StartSampleAPIServer(t.Context(), flags...))(t)
	// Requests for it would be failures of the last minute, at which the command of testClients ends with 1.
	probed := w.front.Endpoint.Probed(w.StaticToken("admin"), "v1beta1.wardle.example.com")
	suite.Eventually(t, soon, "available", func() (bool, string) {
		err := probed(t.Context())
		return err == nil, fmt.Sprint(err)
	})
}

func testLint(t *testing.T, w *world) {
	check.Same(t, "", w.must(t, w.blocks[4], "--allow-loopback-backends"), "what lint reports")
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
	check.Has(t, out, "Username    admin", "v1beta1.wardle.example.com")
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
	_, body := w.ask(t, w.front, passport{cred: w.StaticToken("admin")}, "GET", "/fairlead/status", "")
	check.Lacks(t, body, `"status": "failed"`)
	direct := &cluster.Front{Endpoint: w.Endpoint()}
	if code, body := w.ask(t, direct, passport{cred: w.StaticToken("admin")}, "GET", flunders, ""); code < 400 {
		t.Errorf("past Fairlead: %d %s", code, body)
	}
}

const soon = time.Minute // how long a change may take to be known everywhere

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

// testCertificates makes certificates, compares them with those for cert-manager, and renews them
// with the CronJob's account.
func testCertificates(t *testing.T, w *world) {
	out := w.must(t, w.blocks[1])
	check.Same(t, 3, strings.Count(out, " written"), "what init has written:\n%s", out)
	t.Run("as cert-manager's", func(t *testing.T) {
		data := must.Get(os.ReadFile("../../../deploy/components/cert-manager/certificates.yaml"))(t)
		usages := map[x509.ExtKeyUsage]string{x509.ExtKeyUsageClientAuth: "client auth", x509.ExtKeyUsageServerAuth: "server auth"}
		n := 0
		for document := range strings.SplitSeq(string(data), "\n---\n") {
			var o struct {
				Kind string
				Spec struct {
					IsCA                   bool
					CommonName, SecretName string
					Usages                 []string
				}
			}
			must.Do(t, yaml.Unmarshal([]byte(document), &o))
			if o.Kind != "Certificate" {
				continue
			}
			n++
			leaf := w.leaf(t, o.Spec.SecretName)
			if leaf.IsCA != o.Spec.IsCA || !leaf.IsCA && leaf.Subject.CommonName != o.Spec.CommonName || !leaf.IsCA && !slices.Contains(o.Spec.Usages, usages[leaf.ExtKeyUsage[0]]) {
				t.Errorf("%s: CA %t, %q for %v; cert-manager is asked for %+v", o.Spec.SecretName, leaf.IsCA, leaf.Subject.CommonName, leaf.ExtKeyUsage, o.Spec)
			}
		}
		check.Same(t, 3, n, "certificates")
	})
	t.Run("what somebody else made", func(t *testing.T) {
		w.must(t, "kubectl -n managed create secret tls fairlead-front-proxy-client --cert="+w.PKI.FrontProxyPair.CertFile, "--key="+w.PKI.FrontProxyPair.KeyFile)
		a := w.follow(t, "kubectl fairlead init -n managed")
		check.Same(t, true, a.Code != 0 && strings.Contains(a.Errs, "conflict"), "exit code %d\n%s%s", a.Code, a.Out, a.Errs)
	})
	t.Run("renewed", func(t *testing.T) { testRenewed(t, w) })
}

// testRenewed runs the CronJob's command with its account. A new name causes a renewal, as an
// expiring certificate does.
func testRenewed(t *testing.T, w *world) {
	rendered := w.must(t, "mkdir -p deploy/job && printf 'resources: [../base]\\ncomponents: [../components/renew]\\n' > deploy/job/kustomization.yaml && kubectl kustomize deploy/job")
	_, job, _ := strings.Cut(rendered, "kind: CronJob")
	must.Be(t, strings.Contains(job, "/usr/local/bin/kubectl-fairlead\n") && strings.Contains(job, "- init\n"), "the CronJob runs another command:\n%s", job)
	w.must(t, "kubectl apply -k deploy/job")
	account := filepath.Join(w.folder, "renew.kubeconfig")
	must.Do(t, w.Cluster.Endpoint().WriteKubeconfig(account, cluster.Credentials{Token: suite.Token(t, w.core, "kube-system", "fairlead-renew")}))
	init := "kubectl-fairlead init --kubeconfig=" + account
	if out := w.must(t, init); strings.Count(out, " unchanged") != 3 {
		t.Errorf("the second run printed:\n%s", out)
	}
	before := w.leaf(t, "fairlead-serving")
	if out := w.must(t, init, "--serving-names=front.example.com,fairlead.kube-system.svc,127.0.0.1"); strings.Count(out, " written") != 1 || w.leaf(t, "fairlead-serving").Equal(before) {
		t.Errorf("with another name it printed:\n%s", out)
	}
}

// testTakenUp renews the proxy client certificate, and Fairlead uses the new one.
func testTakenUp(t *testing.T, w *world) {
	w.must(t, "kubectl -n kube-system delete secret fairlead-front-proxy-client && kubectl fairlead init")
	d := must.Get(w.core.AppsV1().Deployments("kube-system").Get(t.Context(), "fairlead", metav1.GetOptions{}))(t)
	w.mount(t, d, filepath.Join(w.Dir(), "fairlead"))
	admin, ends := passport{cred: w.StaticToken("admin")}, w.leaf(t, "fairlead-front-proxy-client").NotAfter.Format(time.RFC3339)
	suite.Eventually(t, 2*time.Minute, "the certificate that ends at "+ends, func() (bool, string) { // files are read every minute
		_, body := w.ask(t, w.front, admin, "GET", "/fairlead/status", "")
		return strings.Contains(body, ends), body
	})
	if code, body := w.ask(t, w.front, admin, "GET", flunders, ""); code != 200 {
		t.Errorf("after the renewal: %d %s", code, body)
	}
}

// testOthers runs the commands of docs/managed.md for products with accessible keys, as far as they
// need no such product.
func testOthers(t *testing.T, w *world) {
	page := must.Get(os.ReadFile("../../../docs/managed.md"))(t)
	block := func(title string) string {
		_, rest, _ := strings.Cut(string(page), "\n## "+title+"\n")
		_, rest, _ = strings.Cut(rest, "```console\n")
		text, _, found := strings.Cut(rest, "```")
		must.Be(t, found, "no block below %q", title)
		return text
	}
	t.Run("K3s", func(t *testing.T) {
		root := must.Get(filepath.Abs("../../.."))(t)
		helm := strings.Replace(block("K3s and RKE2"), "helm upgrade --install", suite.Tool(t, "helm")+" template", 1)
		out := w.must(t, "cd "+root+" && "+helm)
		check.Has(t, out,
			"hostPath: {path: /var/lib/rancher/k3s/server/tls/client-auth-proxy.key, type: File}}", "- --local-apiserver=https://127.0.0.1:6444", "- --requestheader-allowed-names=system:auth-proxy",
			"- --proxy-client-key-file=/etc/kubernetes/pki/client-auth-proxy.key", "- --tls-cert-file=/etc/kubernetes/pki/serving-kube-apiserver.crt")
	})
	t.Run("Talos", func(t *testing.T) {
		aggregator := must.Get(w.PKI.NewAuthority("aggregator-ca"))(t)
		w.must(t, "cp "+w.PKI.Dir+"/aggregator-ca.crt "+w.PKI.Dir+"/aggregator-ca.key . && "+block("Talos"))
		data := must.Get(os.ReadFile(filepath.Join(w.folder, "front-proxy-client.crt")))(t)
		chain := must.Get(certutil.ParseCertsPEM(data))(t)
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: aggregator.CA.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err != nil || chain[0].Subject.CommonName != "front-proxy-client" || chain[0].IsCA {
			t.Errorf("%s, CA %t: %v", chain[0].Subject, chain[0].IsCA, err)
		}
	})
}

func (w *world) leaf(t *testing.T, secret string) *x509.Certificate {
	t.Helper()
	s := must.Get(w.core.CoreV1().Secrets("kube-system").Get(t.Context(), secret, metav1.GetOptions{}))(t)
	chain := must.Get(certutil.ParseCertsPEM(s.Data["tls.crt"]))(t)
	return chain[0]
}
