//go:build e2e

package etcd

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const keys = "/registry/apiregistration.k8s.io/apiservices/" // the prefix of the keys of APIServices

func text(t *testing.T, o *apiregistrationv1.APIService) string {
	t.Helper()
	o.APIVersion, o.Kind = "apiregistration.k8s.io/v1", "APIService"
	return string(must.Get(yaml.Marshal(o))(t))
}

// testShared lets a kube-apiserver and a Fairlead share a prefix in etcd.
func testShared(t *testing.T, w *world) {
	s := w.site(t, 0, cluster.Config{APIServers: 1})
	server := s.extension(t, "widgets.example.com/v1", "gadgets.example.com/v1")
	theirs := s.services(t, s.Endpoint())
	made := must.Get(theirs.Create(t.Context(), s.remote(widgetsAPI, server), metav1.CreateOptions{}))(t)
	d := s.open(t, s.Registry())
	t.Run("what kube-apiserver wrote is routed and read", func(t *testing.T) {
		d.becomes(t, widgets, http.StatusOK)
		got := must.Get(d.services.Get(t.Context(), made.Name, metav1.GetOptions{}))(t)
		if got.UID != made.UID || got.CreationTimestamp != made.CreationTimestamp {
			t.Errorf("%v, want %v", got, made)
		}
		all := must.Get(d.services.List(t.Context(), metav1.ListOptions{LabelSelector: "kube-aggregator.kubernetes.io/automanaged=onstart"}))(t)
		check.Same(t, true, len(all.Items) >= 10, "%d of kube-apiserver's own APIServices, want at least 10", len(all.Items))
	})
	t.Run("what kube-apiserver changes and deletes is followed", func(t *testing.T) {
		must.Get(theirs.Patch(t.Context(), made.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"fairlead.dev/maintenance":"hull"}}}`), metav1.PatchOptions{}))(t)
		d.becomes(t, widgets, http.StatusServiceUnavailable)
		must.Do(t, theirs.Delete(t.Context(), made.Name, metav1.DeleteOptions{}))
		d.becomes(t, widgets, http.StatusNotFound)
	})
	t.Run("what Fairlead writes is read, also after kube-apiserver's restart", func(t *testing.T) {
		ours := must.Get(d.services.Create(t.Context(), s.remote("v1.gadgets.example.com", server), metav1.CreateOptions{}))(t)
		for range 2 {
			got := must.Get(theirs.Get(t.Context(), ours.Name, metav1.GetOptions{}))(t)
			check.Same(t, [3]string{string(ours.UID), server.URL(), string(ours.Spec.CABundle)}, [3]string{string(got.UID), got.Annotations[urlAnnotation], string(got.Spec.CABundle)}, "UID, URL and bundle")
			must.Do(t, s.APIServers[0].Restart(t.Context()))
		}
		res := must.Get(s.kv.Get(t.Context(), keys+ours.Name))(t)
		if len(res.Kvs) != 1 || !strings.HasPrefix(string(res.Kvs[0].Value), `{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1","metadata":{"name":"v1.`) {
			t.Errorf("not in kube-apiserver's encoding: %v", res.Kvs)
		}
		must.Do(t, d.services.Delete(t.Context(), ours.Name, metav1.DeleteOptions{}))
		suite.Eventually(t, time.Minute, "gone", func() (bool, string) { // from kube-apiserver's own cache
			_, err := theirs.Get(t.Context(), ours.Name, metav1.GetOptions{ResourceVersion: "0"})
			return err != nil, "still there"
		})
	})
}

// testBeside keeps APIServices in etcd, while a kube-apiserver authorizes writes and writes to the
// same statuses: its own aggregator finds no Service where the APIService has an address instead.
func testBeside(t *testing.T, w *world) {
	s := w.site(t, 0, cluster.Config{APIServers: 1})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, s.Endpoint().WriteKubeconfig(kubeconfig, s.Admin()))
	d := s.open(t, s.Registry(), "--kubeconfig="+kubeconfig)
	alice := kubectl.As(t, d.Endpoint, cluster.Credentials{Pair: must.Get(s.PKI.Client.Issue("alice", cluster.Leaf{User: "alice"}))(t)})
	admin := kubectl.As(t, d.Endpoint, s.Admin())
	file := filepath.Join(t.TempDir(), "apiservice.yaml")
	suite.Put(t, file, text(t, s.remote(widgetsAPI, s.extension(t, "widgets.example.com/v1"))))
	t.Run("a role of the cluster's decides", func(t *testing.T) {
		alice.Fail(t, "Forbidden", "", "create", "-f", file)
		admin.Run(t, "create", "clusterrole", "writer", "--verb=create,get,list,watch", "--resource=apiservices.apiregistration.k8s.io")
		admin.Run(t, "create", "clusterrolebinding", "writer", "--clusterrole=writer", "--user=alice")
		alice.Soon(t, "she may create", "create", "-f", file)
		d.becomes(t, widgets, http.StatusOK)
		alice.Fail(t, "Forbidden", "", "delete", "apiservice", widgetsAPI)
	})
	t.Run("the admin port takes no writes", func(t *testing.T) {
		port := &door{Front: &cluster.Front{Part: d.Part, Endpoint: d.Admin}, client: suite.Client(t, d.Admin, s.Admin())}
		res := port.ask(t, http.MethodPost, base, manifest("v1.admin.example.com", "", ""))
		check.Same(t, true, res.Code == http.StatusNotFound || res.Code == http.StatusMethodNotAllowed, "%d %s", res.Code, res.Body)
	})
	t.Run("two writers of a status do not fight", func(t *testing.T) {
		suite.Eventually(t, 60*time.Second, "it is logged", func() (bool, string) {
			log := must.Get(os.ReadFile(d.Part.LogFile()))(t)
			return strings.Contains(string(log), "another writer writes this condition"), ""
		})
		pause(t.Context(), 8*time.Second) // enough for some thousand writes, if they fought
		res := must.Get(s.kv.Get(t.Context(), keys+widgetsAPI))(t)
		check.Same(t, true, res.Kvs[0].Version <= 20, "status written %d times", res.Kvs[0].Version)
	})
}

// testKubectl does what operators do, with two Fairleads on one etcd.
func testKubectl(t *testing.T, w *world) {
	s := w.site(t, 2, cluster.Config{})
	server := s.extension(t, "widgets.example.com/v1")
	k := kubectl.As(t, s.doors[0].Endpoint, s.Admin())
	file := filepath.Join(t.TempDir(), "apiservice.yaml")
	suite.Put(t, file, text(t, s.remote(widgetsAPI, server)))
	for _, tc := range []struct {
		code int
		args string
		want string
	}{
		{1, "diff -f " + file, "+kind: APIService"},
		{0, "apply -f " + file, "created"},
		{0, "wait --for=condition=Available --timeout=2m apiservice/" + widgetsAPI, "condition met"},
		{0, "apply -f " + file, "unchanged"},
		{0, "diff -f " + file, ""},
		{0, "apply --server-side --field-manager=one --force-conflicts -f " + file, "serverside-applied"},
		{0, "label apiservice " + widgetsAPI + " x=y", "labeled"},
		{0, "patch apiservice " + widgetsAPI + ` --type=json -p [{"op":"replace","path":"/spec/versionPriority","value":12}]`, "patched"},
		{1, "diff -f " + file, "+  versionPriority: 10"},
		{0, "get apiservices -l x=y", server.URL()},
		{0, "describe apiservice " + widgetsAPI, "all checks passed"},
		{0, "explain apiservice.spec", "groupPriorityMinimum"},
		{0, "api-resources --api-group=apiregistration.k8s.io -o wide", "create,delete,deletecollection,get,list,patch,update,watch"},
		{0, "get widgets -A -o name", "widget.widgets.example.com/"},
		{0, "apply -f ../../../examples/etcd", "v1.tides.example.com created"},
		{0, "get apiservice v1.tides.example.com", "https://tides-1.example.com,https://tides-2.example.com:8443"},
	} {
		k.Says(t, tc.code, "", tc.args, tc.want)
	}
	k.Fail(t, `unknown field "spec.flavour"`, strings.Replace(text(t, s.remote(widgetsAPI, server)), "spec:", "spec:\n  flavour: sweet", 1), "apply", "-f", "-")
	s.become(t, widgets, http.StatusOK)
	k.Run(t, "delete", "-f", file)
	s.become(t, widgets, http.StatusNotFound)
}

// accepts waits until a write is accepted and routed.
func (s *site) accepts(t *testing.T, name string) {
	t.Helper()
	server := s.everything(t)
	suite.Eventually(t, 2*time.Minute, "a write is accepted", func() (bool, string) {
		_, err := s.doors[0].services.Create(t.Context(), s.remote(name, server), metav1.CreateOptions{})
		return err == nil, fmt.Sprint(err)
	})
	s.doors[0].becomes(t, things(name), http.StatusOK)
}
