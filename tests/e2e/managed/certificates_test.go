//go:build e2e

package managed

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// testCertificates makes certificates, compares them with those for cert-manager, and renews them
// with the CronJob's account.
func testCertificates(t *testing.T, w *world) {
	if out := w.must(t, w.blocks[1]); strings.Count(out, " written") != 3 {
		t.Errorf("init printed:\n%s", out)
	}
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
		if n != 3 {
			t.Errorf("%d certificates, want 3", n)
		}
	})
	t.Run("what somebody else made", func(t *testing.T) {
		w.must(t, "kubectl -n managed create secret tls fairlead-front-proxy-client --cert="+w.PKI.FrontProxyPair.CertFile, "--key="+w.PKI.FrontProxyPair.KeyFile)
		if a := w.follow(t, "kubectl fairlead init -n managed"); a.Code == 0 || !strings.Contains(a.Errs, "conflict") {
			t.Errorf("exit code %d\n%s%s", a.Code, a.Out, a.Errs)
		}
	})
	t.Run("renewed", func(t *testing.T) { testRenewed(t, w) })
}

// testRenewed runs the CronJob's command with its account. A new name causes a renewal, as an
// expiring certificate does.
func testRenewed(t *testing.T, w *world) {
	rendered := w.must(t, "mkdir -p deploy/job && printf 'resources: [../base]\\ncomponents: [../components/renew]\\n' > deploy/job/kustomization.yaml && kubectl kustomize deploy/job")
	_, job, _ := strings.Cut(rendered, "kind: CronJob")
	if !strings.Contains(job, "/usr/local/bin/kubectl-fairlead\n") || !strings.Contains(job, "- init\n") {
		t.Fatalf("the CronJob runs another command:\n%s", job)
	}
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
		if !found {
			t.Fatalf("no block below %q", title)
		}
		return text
	}
	t.Run("K3s", func(t *testing.T) {
		root := must.Get(filepath.Abs("../../.."))(t)
		helm := strings.Replace(block("K3s and RKE2"), "helm upgrade --install", suite.Tool(t, "helm")+" template", 1)
		out := w.must(t, "cd "+root+" && "+helm)
		for _, want := range []string{
			"hostPath: {path: /var/lib/rancher/k3s/server/tls/client-auth-proxy.key, type: File}}", "- --local-apiserver=https://127.0.0.1:6444", "- --requestheader-allowed-names=system:auth-proxy",
			"- --proxy-client-key-file=/etc/kubernetes/pki/client-auth-proxy.key", "- --tls-cert-file=/etc/kubernetes/pki/serving-kube-apiserver.crt",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("the rendered manifests lack %q", want)
			}
		}
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
