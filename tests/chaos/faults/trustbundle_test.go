//go:build e2e

package faults

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
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

// testTrustBundle takes a backend's CA from a ClusterTrustBundle of a signer: it is replaced under requests, deleted,
// and cannot be read. Fairlead has its shipped ServiceAccount.
func testTrustBundle(t *testing.T, d *door) {
	const name, role = "example.com:rotation:bundle", "system:cluster-trust-bundle-discovery"
	w, r, second := d.w, d.remote(t, 1, nil), pki.NewCA("second-ca")
	bundles, bindings := w.core.CertificatesV1().ClusterTrustBundles(), w.core.RbacV1().ClusterRoleBindings()
	create := func() {
		must.Get(bundles.Create(t.Context(), &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: "example.com/rotation", TrustBundle: string(r.ca.PEM())},
		}, metav1.CreateOptions{}))(t)
	}
	create()
	must.Get(w.services.Patch(t.Context(), "v1."+r.group, types.MergePatchType, fmt.Appendf(nil,
		`{"metadata":{"annotations":{"fairlead.dev/ca-from":"clustertrustbundle/%s","fairlead.dev/ca-rotation-overlap":"2s"}},"spec":{"caBundle":null}}`, name), metav1.PatchOptions{}))(t)
	d = w.newDoor(t, "--kubeconfig="+must.Get(w.Account(t.Context(), w.Endpoint(), "../../../deploy", "control-plane"))(t))
	client, url := w.users(1, true)[0], d.Endpoint.URL+r.widgets+"/widget-000"
	answers := func(what, wants string) {
		t.Helper()
		took := suite.Eventually(t, longest, what, func() (bool, string) {
			err := fmt.Sprint(ask.Serves(t.Context(), client, url))
			return strings.Contains(err, wants), err
		})
		t.Logf("%s after %s", what, took)
	}
	answers("served", "<nil>")
	t.Run("replaced", func(t *testing.T) {
		trust := func(cas ...*pki.CA) {
			b := must.Get(bundles.Get(t.Context(), name, metav1.GetOptions{}))(t)
			b.Spec.TrustBundle = string(pki.Bundle(cas...))
			must.Get(bundles.Update(t.Context(), b, metav1.UpdateOptions{}))(t)
			suite.Pause(t, 2*time.Second)
		}
		get := func(int) (string, string, string) { return http.MethodGet, url, "" }
		l := (&volley.Load{Every: 10 * time.Millisecond, Clients: []*http.Client{client}, Make: get}).Start(t)
		trust(r.ca, second)
		r.serve(second)
		trust(second)
		suite.Pause(t, 3*time.Second) // connections that the first one verified are closed
		mustSucceed(t, l.Stop(), 0)
	})
	t.Run("deleted", func(t *testing.T) {
		must.Do(t, bundles.Delete(t.Context(), name, metav1.DeleteOptions{}))
		answers("refused", "503")
		create()
		r.serve(r.ca)
		answers("served", "<nil>")
	})
	t.Run("denied", func(t *testing.T) {
		binding := must.Get(bindings.Get(t.Context(), role, metav1.GetOptions{}))(t)
		must.Do(t, bindings.Delete(t.Context(), role, metav1.DeleteOptions{}))
		t.Cleanup(func() { _, _ = bindings.Create(context.WithoutCancel(t.Context()), binding, metav1.CreateOptions{}) })
		must.Do(t, d.Part.Restart(t.Context()))
		answers("refused", "503")
		suite.Eventually(t, 90*time.Second, "the check names the right, and the page the source", func() (bool, string) {
			s, said, source := new(answer.Status), "", "clustertrustbundle "+name
			must.Do(t, json.Unmarshal([]byte(must.Get(ask.Get(t.Context(), d.admin, d.Admin.URL+"/fairlead/status"))(t)), s))
			for _, k := range s.Failing() {
				said += k.Message + ": " + k.Advice + "\n"
			}
			for _, a := range s.APIServices {
				if a.Trust != nil && a.Name == "v1."+r.group {
					source = a.Trust.Source
				}
			}
			return strings.Contains(said, "list clustertrustbundles.certificates.k8s.io "+name) && strings.Contains(said, "bind ClusterRole "+role) &&
				source == "clustertrustbundle "+name, said + source
		})
		binding.ResourceVersion, binding.UID = "", ""
		must.Get(bindings.Create(t.Context(), binding, metav1.CreateOptions{}))(t)
		answers("served", "<nil>")
	})
}
