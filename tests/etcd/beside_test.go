//go:build e2e

package etcd

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testBeside keeps APIServices in etcd, while a kube-apiserver authorizes writes and has the
// Services.
func testBeside(t *testing.T, w *world) {
	s := w.site(t, 0, cluster.Config{APIServers: 1})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, s.Endpoint().WriteKubeconfig(kubeconfig, s.Admin()))
	d := s.open(t, s.Registry(), "--kubeconfig="+kubeconfig)
	alice := must.Get(s.PKI.Client.Issue("alice", cluster.Leaf{User: "alice"}))(t)
	file := filepath.Join(t.TempDir(), "alice")
	must.Do(t, d.Endpoint.WriteKubeconfig(file, cluster.Credentials{Pair: alice}))
	hers, admin := kubectl{w.kubectl, []string{"--kubeconfig", file, "--cache-dir", t.TempDir()}}, s.kubectl(t, d.Endpoint)
	server := s.extension(t, "widgets.example.com/v1")
	at := must.Get(url.Parse(server.URL()))(t)
	port := must.Get(strconv.Atoi(at.Port()))(t)

	t.Run("who has no right may not write", func(t *testing.T) {
		hers.run(t, 1, text(t, s.remote(widgetsAPI, server)), []string{"create", "-f", "-"}, "Forbidden")
	})
	t.Run("with a role of the cluster's she may", func(t *testing.T) {
		admin.run(t, 0, "", []string{"create", "clusterrole", "writer", "--verb=create,get,list,watch", "--resource=apiservices.apiregistration.k8s.io"})
		admin.run(t, 0, "", []string{"create", "clusterrolebinding", "writer", "--clusterrole=writer", "--user=alice"})
		body := text(t, s.remote(widgetsAPI, server))
		suite.Eventually(t, 30*time.Second, "she may create", func() (bool, string) { // a refusal is cached for a while
			a := suite.Run(t, hers.command(t, "create", "-f", "-"), body)
			return a.Code == 0, a.Errs
		})
		d.becomes(t, widgets, http.StatusOK)
	})
	t.Run("but not delete", func(t *testing.T) { hers.run(t, 1, "", []string{"delete", "apiservice", widgetsAPI}, "Forbidden") })
	t.Run("what only kube-apiserver serves is there", func(t *testing.T) {
		admin.run(t, 0, "", []string{"get", "namespaces", "default", "-o", "name"}, "namespace/default")
	})
	t.Run("a Service of the cluster's is routed", func(t *testing.T) {
		must.Do(t, d.services.Delete(t.Context(), widgetsAPI, metav1.DeleteOptions{}))
		d.becomes(t, widgets, http.StatusNotFound)
		// The extension server's certificate is for its address, not for a Service.
		o := s.remote(widgetsAPI, server)
		admin.run(t, 0, "", []string{"create", "service", "externalname", "widgets", "--external-name=localhost", "--tcp=" + at.Port()})
		port := int32(port)
		o.Annotations, o.Spec.CABundle, o.Spec.InsecureSkipTLSVerify = nil, nil, true
		o.Spec.Service.Namespace, o.Spec.Service.Name, o.Spec.Service.Port = "default", "widgets", &port
		must.Get(d.services.Create(t.Context(), o, metav1.CreateOptions{}))(t)
		d.becomes(t, widgets, http.StatusOK)
	})
	t.Run("the admin port takes no writes", func(t *testing.T) {
		admin := &door{Front: &cluster.Front{Part: d.Part, Endpoint: d.Admin}, client: suite.Client(t, d.Admin, s.Admin())}
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if res := admin.ask(t, method, base, text(t, local("v1.admin.example.com"))); res.Code != http.StatusNotFound && res.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s: %d %s", method, res.Code, res.Body)
			}
		}
		if res := admin.ask(t, http.MethodGet, "/metrics", ""); res.Code != http.StatusOK || !strings.Contains(res.Body, `etcd_request_duration_seconds_count{group="apiregistration.k8s.io",operation="create",resource="apiservices"}`) {
			t.Errorf("%d, or no metrics of etcd", res.Code)
		}
	})
	// kube-apiserver's own aggregator writes the same condition. It finds no Service, because the
	// APIService has an address instead.
	t.Run("two writers of a status do not fight", func(t *testing.T) {
		const name = "v1.gadgets.example.com"
		must.Get(d.services.Create(t.Context(), s.remote(name, s.extension(t, "gadgets.example.com/v1")), metav1.CreateOptions{}))(t)
		log := ""
		suite.Eventually(t, 60*time.Second, "it is logged", func() (bool, string) {
			data := must.Get(os.ReadFile(d.Part.LogFile()))(t)
			log = string(data)
			return strings.Contains(log, "another writer writes this condition"), ""
		})
		pause(t.Context(), 8*time.Second) // enough for some thousand writes, if they fought
		res, err := s.kv.Get(t.Context(), keys+name)
		must.Do(t, err)
		if n := res.Kvs[0].Version; n > 20 {
			t.Errorf("status written %d times", n)
		}
	})
}

// testRestored empties etcd, like a restored old backup: its revision goes back.
func testRestored(t *testing.T, w *world) {
	s := w.site(t, 2, cluster.Config{})
	s.routed(t)
	for range 20 { // so that the writes below do not reach this revision
		must.Get(s.kv.Put(t.Context(), "noise", "x"))(t)
	}
	s.Etcd.Kill()
	must.Do(t, os.RemoveAll(filepath.Join(s.Dir(), "data-etcd")))
	must.Do(t, s.Etcd.Restart(t.Context()))
	t.Run("what it does not have is not routed", func(t *testing.T) {
		for _, d := range s.doors {
			d.becomes(t, widgets, http.StatusNotFound)
		}
	})
	t.Run("what is new is", func(t *testing.T) { s.accepts(t, "v1.new.example.com") })
}
