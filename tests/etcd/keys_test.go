//go:build e2e

package etcd

import (
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// keys is the prefix of the keys of APIServices.
const keys = "/registry/apiregistration.k8s.io/apiservices/"

// testKeys lets a kube-apiserver and a Fairlead share a prefix.
func testKeys(t *testing.T, w *world) {
	s := w.site(t, 0, cluster.Config{APIServers: 1})
	server := s.extension(t, "widgets.example.com/v1", "gadgets.example.com/v1")
	theirs := s.services(t, s.Endpoint())
	made := must.Get(theirs.Create(t.Context(), s.remote(widgetsAPI, server), metav1.CreateOptions{}))(t)
	d := s.open(t, s.Registry())
	t.Run("what kube-apiserver wrote is routed", func(t *testing.T) { d.becomes(t, widgets, http.StatusOK) })
	t.Run("what kube-apiserver wrote is read", func(t *testing.T) {
		got := must.Get(d.services.Get(t.Context(), made.Name, metav1.GetOptions{}))(t)
		if got.UID != made.UID || got.Spec.Service.Name != "none" || got.CreationTimestamp != made.CreationTimestamp {
			t.Errorf("%v, want %v", got, made)
		}
		all := must.Get(d.services.List(t.Context(), metav1.ListOptions{LabelSelector: "kube-aggregator.kubernetes.io/automanaged=onstart"}))(t)
		if len(all.Items) < 10 {
			t.Errorf("%d of kube-apiserver's own APIServices, want at least 10", len(all.Items))
		}
	})
	t.Run("what kube-apiserver changes is routed", func(t *testing.T) {
		must.Get(theirs.Patch(t.Context(), made.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"fairlead.dev/maintenance":"hull"}}}`), metav1.PatchOptions{}))(t)
		d.becomes(t, widgets, http.StatusServiceUnavailable)
	})
	ours := must.Get(d.services.Create(t.Context(), s.remote("v1.gadgets.example.com", server), metav1.CreateOptions{}))(t)
	read := func(t *testing.T) {
		got := must.Get(theirs.Get(t.Context(), ours.Name, metav1.GetOptions{}))(t)
		if got.UID != ours.UID || got.Annotations[urlAnnotation] != server.URL() || string(got.Spec.CABundle) != string(ours.Spec.CABundle) {
			t.Errorf("%v, want %v", got, ours)
		}
	}
	t.Run("what Fairlead wrote is read", read)
	t.Run("under the same key and in the same encoding", func(t *testing.T) {
		var text []string
		for _, name := range []string{made.Name, ours.Name} {
			res, err := s.kv.Get(t.Context(), keys+name)
			must.Do(t, err)
			if len(res.Kvs) != 1 {
				t.Fatalf("%d keys of %s", len(res.Kvs), name)
			}
			text = append(text, string(res.Kvs[0].Value))
		}
		for _, one := range text {
			if !strings.HasPrefix(one, `{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1","metadata":{"name":"v1.`) {
				t.Errorf("not in kube-apiserver's encoding: %.100s", one)
			}
		}
	})
	t.Run("and after kube-apiserver's restart", func(t *testing.T) {
		must.Do(t, s.APIServers[0].Restart(t.Context()))
		read(t)
	})
	t.Run("what kube-apiserver deletes is gone", func(t *testing.T) {
		must.Do(t, theirs.Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
		d.becomes(t, widgets, http.StatusNotFound)
	})
	t.Run("what Fairlead deletes is gone", func(t *testing.T) {
		must.Do(t, d.services.Delete(t.Context(), ours.Name, metav1.DeleteOptions{}))
		suite.Eventually(t, 10*time.Second, "gone", func() (bool, string) {
			_, err := theirs.Get(t.Context(), ours.Name, metav1.GetOptions{ResourceVersion: "0"})
			return err != nil, "still there"
		})
	})
}
