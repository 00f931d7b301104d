//go:build e2e

package rotation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// A backend's CA comes from a ClusterTrustBundle of a signer: it is replaced under requests, cannot be read, and is
// deleted. Fairlead has its shipped ServiceAccount. kube-apiserver's own aggregator knows only spec.caBundle.
func TestTrustBundle(t *testing.T) {
	const name, gv, role = "example.com:rotation:bundle", "bundled.example.com/v1", "system:cluster-trust-bundle-discovery"
	dir := suite.Folder(t, "trustbundle")
	w := suite.Start(t, cluster.Config{Dir: dir})
	rc := w.Endpoint().RESTConfig(w.Admin())
	core, services := must.Get(kubernetes.NewForConfig(rc))(t), must.Get(aggregator.NewForConfig(rc))(t).ApiregistrationV1().APIServices()
	bundles, bindings := core.CertificatesV1().ClusterTrustBundles(), core.RbacV1().ClusterRoleBindings()
	first, second := pki.NewCA("first-ca"), pki.NewCA("second-ca")
	create := func() {
		must.Get(bundles.Create(t.Context(), &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: "example.com/rotation", TrustBundle: string(first.PEM())},
		}, metav1.CreateOptions{}))(t)
	}
	create()
	server := extension.Start(t, extension.Config{GroupVersions: []string{gv}, Names: []string{"bundled.default.svc"}, CA: first, Objects: 1, Record: -1})
	must.Do(t, w.Register(t.Context(), cluster.Backend{Namespace: "default", Service: "bundled", Port: server.Port(), CAFile: w.PKI.Serving.CertFile, GroupVersions: []string{gv}}))
	must.Get(services.Patch(t.Context(), "v1.bundled.example.com", "application/merge-patch+json", fmt.Appendf(nil,
		`{"metadata":{"annotations":{"fairlead.dev/ca-from":"clustertrustbundle/%s","fairlead.dev/ca-rotation-overlap":"2s"}},"spec":{"caBundle":null}}`, name), metav1.PatchOptions{}))(t)
	kubeconfig := must.Get(w.Account(t.Context(), w.Endpoint(), "../../../deploy", "control-plane"))(t)
	front := must.Get(w.StartFairlead(t.Context(), cluster.Fairlead{Path: suite.Build(t, dir), Args: []string{"--kubeconfig=" + kubeconfig}}))(t)
	client, admin := suite.Client(t, front.Endpoint, w.Admin()), suite.Client(t, front.Admin, w.Admin())
	const widgets = "/apis/" + gv + "/namespaces/default/widgets/widget-000"
	answers := func(what, wants string) {
		t.Helper()
		took := suite.Eventually(t, 30*time.Second, what, func() (bool, string) {
			err := fmt.Sprint(ask.Serves(t.Context(), client, front.Endpoint.URL+widgets))
			return strings.Contains(err, wants), err
		})
		t.Logf("%s after %s", what, took)
	}
	answers("served", "<nil>")
	direct := ask.Serves(t.Context(), suite.Client(t, w.Endpoint(), w.Admin()), w.Endpoint().URL+widgets)
	if direct == nil {
		t.Error("kube-apiserver's aggregator knows the bundle by now")
	}
	t.Logf("kube-apiserver itself: %v", direct)

	t.Run("replaced", func(t *testing.T) {
		trust := func(cas ...*pki.CA) {
			b := must.Get(bundles.Get(t.Context(), name, metav1.GetOptions{}))(t)
			b.Spec.TrustBundle = string(pki.Bundle(cas...))
			must.Get(bundles.Update(t.Context(), b, metav1.UpdateOptions{}))(t)
			suite.Pause(t, 2*time.Second)
		}
		l := &volley.Load{Every: 10 * time.Millisecond, Clients: []*http.Client{client}, Make: func(int) (string, string, string) { return http.MethodGet, front.Endpoint.URL + widgets, "" }}
		l.Start(t)
		trust(first, second)
		server.SetPair(second.Issue(pki.Leaf{CommonName: "extension", Names: []string{"localhost", "bundled.default.svc"}}))
		trust(second)
		suite.Pause(t, 3*time.Second) // connections that the first one verified are closed
		volley.Judge(t, l.Stop(), 0, (*volley.Shot).Failed)
	})
	status := func() *answer.Status {
		s := new(answer.Status)
		must.Do(t, json.Unmarshal([]byte(must.Get(ask.Get(t.Context(), admin, front.Admin.URL+"/fairlead/status"))(t)), s))
		return s
	}
	t.Run("deleted", func(t *testing.T) {
		must.Do(t, bundles.Delete(t.Context(), name, metav1.DeleteOptions{}))
		answers("refused", "503")
		create()
		server.SetPair(first.Issue(pki.Leaf{CommonName: "extension", Names: []string{"localhost", "bundled.default.svc"}}))
		answers("served", "<nil>")
	})
	t.Run("denied", func(t *testing.T) {
		binding := must.Get(bindings.Get(t.Context(), role, metav1.GetOptions{}))(t)
		must.Do(t, bindings.Delete(t.Context(), role, metav1.DeleteOptions{}))
		t.Cleanup(func() { _, _ = bindings.Create(context.WithoutCancel(t.Context()), binding, metav1.CreateOptions{}) })
		must.Do(t, front.Part.Restart(t.Context()))
		answers("refused", "503")
		said := ""
		suite.Eventually(t, 90*time.Second, "the check names the right", func() (bool, string) {
			for _, k := range status().Failing() {
				said += k.Message + ": " + k.Advice + "\n"
			}
			return strings.Contains(said, "list clustertrustbundles.certificates.k8s.io "+name) && strings.Contains(said, "bind ClusterRole "+role), said
		})
		t.Log(said)
		for _, s := range status().APIServices {
			if s.Trust != nil && s.Name == "v1.bundled.example.com" {
				check.Same(t, "clustertrustbundle "+name, s.Trust.Source, "source")
			}
		}
		binding.ResourceVersion, binding.UID = "", ""
		must.Get(bindings.Create(t.Context(), binding, metav1.CreateOptions{}))(t)
		answers("served", "<nil>")
	})
}
