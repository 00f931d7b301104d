//go:build e2e

package behind

import (
	"context"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// own runs a command of kubectl fairlead that asks Fairlead itself.
func (w *world) own(t *testing.T, words ...string) suite.Answer {
	t.Helper()
	kubeconfig := filepath.Join(w.dir, "own.kubeconfig")
	must.Do(t, w.fronts[0].Endpoint.WriteKubeconfig(kubeconfig, w.StaticToken("admin"))) // as people have on managed clusters
	return suite.Run(t, exec.CommandContext(t.Context(), filepath.Join(w.dir, "kubectl-fairlead"), append(words, "--kubeconfig="+kubeconfig)...), "")
}

func (w *world) annotate(t *testing.T, name, key, value string) {
	t.Helper()
	a := must.Get(w.objects.Get(t.Context(), name, metav1.GetOptions{}))(t)
	metav1.SetMetaDataAnnotation(&a.ObjectMeta, key, value)
	must.Get(w.objects.Update(t.Context(), a, metav1.UpdateOptions{}))(t)
}

// testBothSides reads what status, explain and lint say of both sides, and makes loops.
func testBothSides(t *testing.T, w *world) {
	says := func(want string, words ...string) {
		t.Helper()
		suite.Eventually(t, 20*time.Second, strings.Join(words, " ")+" says "+want, func() (bool, string) {
			a := w.own(t, words...)
			return strings.Contains(a.Out, want), a.Out + a.Errs
		})
	}
	lints := func(want string) {
		t.Helper()
		a := w.run(t, "lint", "--behind=kube-system/fairlead", "--local-identity=impersonate")
		said := strings.Contains(a.Out, "error: ")
		check.Same(t, true, said == (want != "") && strings.Contains(a.Out, want), "lint: exit code %d, want %q\n%s%s", a.Code, want, a.Out, a.Errs)
	}
	says("the cluster sends it to service kube-system/fairlead:443, and its own condition says: True, Passed: all checks passed", "explain", beta)
	says("wardle/api", "status", beta)
	lints("")
	t.Log(w.own(t, "status").Out, w.own(t, "explain", beta).Out)

	// The cluster does not reach Fairlead any more.
	const unreached = "the cluster sends it to service kube-system/fairlead:443, and its own condition says: False, "
	w.publish(t, "fairlead")
	says(unreached, "status", beta)
	says(unreached, "explain", beta)
	lints(unreached)
	w.publish(t, "fairlead", fairleads...)
	must.Do(t, w.WaitAvailable(t.Context(), w.Endpoint(), "wardle.example.com/v1beta1"))

	// Whatever leads back to Fairlead is a loop, and gets no request.
	real := must.Get(w.objects.Get(t.Context(), alpha, metav1.GetOptions{}))(t).Annotations["fairlead.dev/service"]
	for value, want := range map[string]string{
		"kube-system/fairlead:443": `service/fairlead in "kube-system" is Fairlead's own: annotation fairlead.dev/service must name the extension server's`,
		"default/kubernetes:443":   `"default/kubernetes:443" is not <namespace>/<service>:<port> of an extension server`,
	} {
		w.annotate(t, alpha, "fairlead.dev/service", value)
		says(want, "status", alpha, "-o=wide")
		lints(want)
		if a := w.run(t, "release", alpha); a.Code != 1 || !strings.Contains(a.Errs, "annotation fairlead.dev/service: ") {
			t.Errorf("release to %s: exit code %d\n%s%s", value, a.Code, a.Out, a.Errs)
		}
	}
	w.annotate(t, alpha, "fairlead.dev/service", real)
	must.Do(t, w.WaitAvailable(t.Context(), w.Endpoint(), "wardle.example.com/v1alpha1"))
	suite.Eventually(t, 40*time.Second, "the cluster has seen it", func() (bool, string) {
		a := w.kubectl.Try(t, "", "get", "apiservice", alpha)
		return strings.Contains(a.Out, "True"), a.Out
	})
	lints("")
	if a := w.run(t, "adopt", "v1.apps"); a.Code != 1 || !strings.Contains(a.Errs, "it is Local") {
		t.Errorf("adopt a Local one: exit code %d\n%s%s", a.Code, a.Out, a.Errs)
	}
	a := w.run(t, "adopt", beta, "--service=default/kubernetes:443")
	check.Same(t, 2, a.Code, "exit code of adopt to the apiserver\n%s%s", a.Out, a.Errs)
}

// testIdentity compares the users that an extension server sees with those who asked the cluster.
// Its callers name others, too.
func testIdentity(t *testing.T, w *world) {
	s := extension.Start(t, extension.Config{GroupVersions: []string{"widgets.example.com/v1"}, Address: "10.79.0.9:7443", Names: []string{"widgets.moored.svc"}})
	ca := filepath.Join(w.dir, "widgets-ca.crt")
	must.Do(t, os.WriteFile(ca, s.CA.PEM(), 0o600))
	must.Do(t, w.Register(t.Context(), cluster.Backend{
		Namespace: "moored", Service: "widgets", Port: 7443, CAFile: ca, Addresses: []string{"10.79.0.9"}, GroupVersions: []string{"widgets.example.com/v1"},
	}))
	w.succeed(t, "adopt", "v1.widgets.example.com")
	w.apply(t, "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: everybody}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},"+
		" subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:authenticated'}, {apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:unauthenticated'}]}")
	defer w.kubectl.Try(t, "", "delete", "clusterrolebinding", "everybody")
	forged := http.Header{
		"X-Remote-User": {"root"}, "X-Remote-Group": {"system:masters"}, "X-Remote-Extra-Scopes": {"all"}, "X_Remote_User": {"root"}, "X-Remote_Group": {"system:masters"},
		"Forwarded": {"for=1.2.3.4"}, "Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io.eA, v4.channel.k8s.io"},
	}
	with := func(more http.Header) http.Header {
		h := forged.Clone()
		maps.Copy(h, more)
		return h
	}
	alice := must.Get(w.PKI.Client.Issue("alice", cluster.Leaf{User: "alice", Groups: []string{"dev"}}))(t)
	account := suite.Token(t, w.core, "moored", w.account(t, "moored", "boat"))
	const path = "/apis/widgets.example.com/v1/namespaces/default/widgets"
	for _, tt := range []struct {
		name         string
		cred         cluster.Credentials
		header       http.Header
		user, groups string
	}{
		{"certificate", cluster.Credentials{Pair: alice}, forged, "alice", "dev system:authenticated"},
		{"token", cluster.Credentials{Token: account}, forged, "system:serviceaccount:moored:boat", "system:serviceaccounts system:serviceaccounts:moored system:authenticated"},
		{"impersonated", w.Admin(), with(http.Header{"Impersonate-User": {"carol"}, "Impersonate-Group": {"ops"}}), "carol", "ops system:authenticated"},
		{"impersonated administrator", w.Admin(), with(http.Header{"Impersonate-User": {"system:kube-aggregator"}, "Impersonate-Group": {"system:masters"}}), "system:kube-aggregator", "system:masters system:authenticated"},
		{"nobody", cluster.Credentials{}, forged, "system:anonymous", "system:unauthenticated"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.Forget()
			r, err := ask.Do(t.Context(), suite.Client(t, w.Endpoint(), tt.cred), http.MethodGet, w.Endpoint().URL+path+"?"+strings.ReplaceAll(tt.name, " ", "-"), tt.header, "")
			if must.Do(t, err); r.Code != http.StatusOK {
				t.Fatalf("%d %s", r.Code, r.Body)
			}
			seen := 0
			for _, q := range s.Requests() {
				if q.Target != path+"?"+strings.ReplaceAll(tt.name, " ", "-")+"=" { // as the aggregator writes it
					continue
				}
				seen++
				user, groups := strings.Join(q.Header["X-Remote-User"], " "), strings.Join(q.Header["X-Remote-Group"], " ")
				check.Same(t, [3]string{tt.user, tt.groups, "fairlead"}, [3]string{user, groups, q.PeerName}, "user and groups, by whom")
				for name := range q.Header {
					if n := strings.ToLower(name); strings.Contains(n, "_") || n == "x-remote-extra-scopes" || n == "authorization" || strings.HasPrefix(n, "impersonate") {
						t.Errorf("%s: %q reached the extension server", name, q.Header[name])
					}
				}
			}
			check.Same(t, 1, seen, "requests that were seen")
		})
	}
	// The aggregator's own probes pass, too: as the user system:kube-aggregator in system:masters.
	suite.Eventually(t, 40*time.Second, "the cluster has asked as itself", func() (bool, string) {
		for _, q := range s.Requests() {
			if q.Target == "/apis/widgets.example.com/v1" && q.Header.Get("X-Remote-User") == "system:kube-aggregator" && q.PeerName == "fairlead" {
				return true, ""
			}
		}
		return false, ""
	})
	// A pod that reaches the Service.
	for name, cred := range map[string]cluster.Credentials{
		"nobody": {}, "a stranger": {Pair: must.Get(must.Get(w.PKI.NewAuthority("strangers"))(t).Issue("stranger", cluster.Leaf{User: "front-proxy-client"}))(t)},
	} {
		r, err := ask.Do(t.Context(), suite.Client(t, w.fronts[0].Endpoint, cred), http.MethodGet, w.fronts[0].Endpoint.URL+path, forged, "")
		must.Do(t, err)
		check.Same(t, http.StatusUnauthorized, r.Code, "%s with forged headers: %s", name, r.Body)
	}
	w.succeed(t, "release", "v1.widgets.example.com")
	must.Do(t, w.objects.Delete(t.Context(), "v1.widgets.example.com", metav1.DeleteOptions{}))
}

func (w *world) account(t *testing.T, namespace, name string) string {
	t.Helper()
	w.apply(t, "{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: "+namespace+", name: "+name+"}}")
	return name
}

func (w *world) command(ctx context.Context, words ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(filepath.Dir(w.bin), "kubectl-fairlead"), append(words, "--kubeconfig="+w.kubectl.Kubeconfig)...)
}
