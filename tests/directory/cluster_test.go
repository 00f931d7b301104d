//go:build e2e

package directory

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// behind starts a kube-apiserver and returns the world with its keys.
func behind(t *testing.T, w *world) (*world, *cluster.Cluster) {
	t.Helper()
	c := suite.Start(t, cluster.Config{})
	in := *w
	in.keys = alone.Keys{Clients: c.PKI.Client.CA, Fronts: c.PKI.FrontProxy.CA, Servers: c.PKI.Serving.CA}
	return &in, c
}

const crd = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.sea.example.com}
spec:
  group: sea.example.com
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const clusterRole = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: widgets}
rules: [{apiGroups: [widgets.example.com], resources: [widgets], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: widgets}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: widgets}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`

// testLocal runs Fairlead with a directory in front of a real kube-apiserver.
func testLocal(t *testing.T, w *world) {
	w, c := behind(t, w)
	registry, dir := t.TempDir(), t.TempDir()
	server := w.extension(t, "widgets.example.com/v1", "sea.example.com/v1", "apps/v1")
	suite.Put(t, filepath.Join(registry, "widgets.yaml"), apiOf(server, "widgets.example.com", "v1", "one"))
	suite.Put(t, filepath.Join(registry, "apps.yaml"), apiOf(server, "apps", "v1", "two"))
	kubeconfig := filepath.Join(dir, "kubeconfig")
	must.Do(t, c.Endpoint().WriteKubeconfig(kubeconfig, c.Admin()))
	suite.Put(t, filepath.Join(dir, "crd.yaml"), crd)
	direct := w.as(t, c.Endpoint(), c.Admin())
	direct.run(t, []string{"apply", "-f", filepath.Join(dir, "crd.yaml")})
	d := w.open(t, registry, "--kubeconfig="+kubeconfig)
	k := d.as(t, c.Admin())
	d.becomes(t, d.root, widgets, http.StatusOK)

	for _, tc := range []struct{ name, apiService, priorities, label string }{
		{"built-in groups register themselves", "v1.batch", "17400/15 ", `"kube-aggregator.kubernetes.io/automanaged":"onstart"`},
		{"CRDs register themselves", "v1.sea.example.com", "1000/100 ", `"kube-aggregator.kubernetes.io/automanaged":"true"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			suite.Eventually(t, 30*time.Second, "registered", func() (bool, string) {
				out, errs, _ := k.try(t, "get", "apiservice", tc.apiService, "-o", "jsonpath={.spec.groupPriorityMinimum}/{.spec.versionPriority} {.metadata.labels}")
				return strings.HasPrefix(out, tc.priorities) && strings.Contains(out, tc.label), out + errs
			})
		})
	}
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"get apiservices", []string{"get", "apiservices"}, []string{"Local", "apps/one", "v1.batch"}},
		{"describe", []string{"describe", "apiservice", "v1.widgets.example.com"}, []string{"all checks passed"}},
		{"explain apiservice", []string{"explain", "apiservice"}, []string{"KIND:       APIService"}},
		{"explain deployment", []string{"explain", "deployment.spec.replicas"}, []string{"replicas"}},
		{"get widgets", []string{"get", "widgets.widgets.example.com", "-n", "default", "-o", "name"}, []string{"widget.widgets.example.com/"}},
		{"local objects", []string{"get", "namespaces"}, []string{"kube-system"}},
		{"custom resources", []string{"get", "boats.sea.example.com", "-A"}, nil},
		{"version", []string{"version"}, []string{"Server Version"}},
		{"api-resources", []string{"api-resources", "--api-group=apiregistration.k8s.io", "-o", "wide"}, []string{"get,list,watch "}}, // not the verbs of kube-apiserver's own aggregator
	} {
		t.Run(tc.name, func(t *testing.T) { k.run(t, tc.args, tc.want...) })
	}
	t.Run("the index leads to the own description of apiregistration.k8s.io", func(t *testing.T) {
		_, body := d.ask(t, d.root, "/openapi/v3")
		var index struct {
			Paths map[string]struct{ ServerRelativeURL string }
		}
		must.Do(t, json.Unmarshal([]byte(body), &index))
		url := index.Paths["apis/apiregistration.k8s.io/v1"].ServerRelativeURL
		status, body := d.ask(t, d.root, url)
		if status != http.StatusOK || !strings.Contains(body, `"title":"Fairlead"`) || strings.Contains(body, `"post"`) {
			t.Errorf("%s: %d %.300s", url, status, body)
		}
	})
	t.Run("the cluster authorizes", func(t *testing.T) {
		alice := w.client(t, c.StaticToken("alice"))
		d.status(t, alice, widgets, http.StatusForbidden)
		suite.Put(t, filepath.Join(dir, "role.yaml"), clusterRole)
		direct.run(t, []string{"apply", "-f", filepath.Join(dir, "role.yaml")})
		d.becomes(t, alice, widgets, http.StatusOK)
	})
	t.Run("a protected group stays local", func(t *testing.T) {
		k.run(t, []string{"get", "deployments", "-A"})
		k.run(t, []string{"create", "deployment", "local", "--image=none", "-n", "default"}, "deployment.apps/local created")
		d.logs(t, "apiservice", "v1.apps", `service/two in "apps"`)
		if n := arrived(server, "/apis/apps/v1/"); n != 0 {
			t.Errorf("the extension server received %d requests for the protected group", n)
		}
	})
	t.Run("a shadowed CRD", func(t *testing.T) {
		suite.Put(t, filepath.Join(registry, "sea.yaml"), apiOf(server, "sea.example.com", "v1", "one"))
		d.logs(t, "file", filepath.Join(registry, "sea.yaml"), "the local apiserver serves it too", `service/one in "apps"`)
		d.becomes(t, d.root, "/apis/sea.example.com/v1/widgets", http.StatusOK)
	})
}

// arrived counts the requests below a path that a server has received, without discovery of the
// path itself.
func arrived(s *extension.Server, below string) int {
	n := 0
	for _, r := range s.Requests(0) {
		if strings.HasPrefix(r.Target, below) && r.Target != below {
			n++
		}
	}
	return n
}

// claimant is a group-version that a remote APIService claims although its group is protected: one
// that no other server serves, and one that kube-apiserver serves itself.
type claimant struct{ name, below, other string }

func claimants() []claimant {
	return []claimant{
		{"v1beta1.apps", "/apis/apps/v1beta1", "/apis/apps/v1/deployments"},
		{"v2.autoscaling", "/apis/autoscaling/v2", "/apis/autoscaling/v1/horizontalpodautoscalers"},
	}
}

// testProtected registers claims of protected groups with a kube-apiserver whose own aggregator
// accepts them: Fairlead must not, and must not forward such requests to a server that does.
func testProtected(t *testing.T, w *world) {
	w, c := behind(t, w)
	server := w.extension(t, "apps/v1beta1", "autoscaling/v2", "sea.example.com/v1")
	must.Do(t, c.Register(t.Context(), cluster.Backend{
		Namespace: "apps", Service: "one", Port: server.Port(), CAFile: c.PKI.Serving.CertFile, GroupVersions: []string{"apps/v1beta1"},
	}))
	// kube-apiserver registers its own group-versions once, and leaves later changes to
	// administrators.
	direct := w.as(t, c.Endpoint(), c.Admin())
	bundle := base64.StdEncoding.EncodeToString(server.CA.PEM())
	patch := func(name, patch string) {
		t.Helper()
		direct.run(t, []string{"patch", "apiservice", name, "--type=merge", "-p", patch})
	}
	toRemote := fmt.Sprintf(`"spec":{"service":{"namespace":"apps","name":"one","port":%d},"caBundle":%q}`, server.Port(), bundle)
	patch("v2.autoscaling", "{"+toRemote+"}")
	root := w.client(t, c.Admin())
	doors := map[string]*door{}
	for name, args := range map[string][]string{"protecting": nil, "open": {"--protected-groups=-"}} {
		front := must.Get(c.StartFairlead(t.Context(), cluster.Fairlead{Path: w.bin, Name: name, Args: append(args, "--logging-format=json")}))(t)
		doors[name] = &door{w: w, front: front.Endpoint, admin: front.Admin, root: root}
	}
	for _, a := range claimants() {
		t.Run(a.name, func(t *testing.T) {
			suite.Eventually(t, 30*time.Second, "obeyed by kube-apiserver itself", func() (bool, string) {
				status, body := alone.Get(t, root, c.Endpoint().URL+a.below+"/widgets")
				return status == http.StatusOK, body
			})
			doors["open"].becomes(t, root, a.below+"/widgets", http.StatusOK)
			testClaim(t, doors["protecting"], server, a)
		})
	}
	t.Run("a shadowed CRD", func(t *testing.T) {
		testHidden(t, w, doors["protecting"], direct, func() {
			patch("v1.sea.example.com", `{"metadata":{"labels":{"kube-aggregator.kubernetes.io/automanaged":null}},`+toRemote+`}`)
		})
	})
	t.Run("what is given back is served again", func(t *testing.T) {
		patch("v2.autoscaling", `{"spec":{"service":null,"caBundle":null}}`)
		doors["protecting"].becomes(t, root, "/apis/autoscaling/v2/horizontalpodautoscalers", http.StatusOK)
	})
}

// testHidden lets an APIService shadow a CustomResourceDefinition.
func testHidden(t *testing.T, w *world, d *door, direct kubectl, hide func()) {
	suite.Put(t, filepath.Join(w.dir, "crd.yaml"), crd)
	direct.run(t, []string{"apply", "-f", filepath.Join(w.dir, "crd.yaml")})
	d.becomes(t, d.root, "/apis/sea.example.com/v1/boats", http.StatusOK)
	hide()
	suite.Eventually(t, 30*time.Second, "reported with both owners", func() (bool, string) {
		_, body := d.ask(t, d.root, "/fairlead/status")
		return strings.Contains(body, "CustomResourceDefinition boats.sea.example.com") && strings.Contains(body, `service/one in \"apps\" has taken over sea.example.com/v1`), body
	})
	d.becomes(t, d.root, "/apis/sea.example.com/v1/widgets", http.StatusOK)
}

// testClaim sends requests for a claimed group-version to Fairlead.
func testClaim(t *testing.T, d *door, server *extension.Server, a claimant) {
	path := a.below + "/widgets"
	suite.Eventually(t, 30*time.Second, "refused", func() (bool, string) {
		status, body := d.ask(t, d.root, path)
		return status == http.StatusServiceUnavailable && strings.Contains(body, "ProtectedGroup"), fmt.Sprint(status, body)
	})
	server.Forget()
	for _, p := range []string{path, a.below, a.below + "/namespaces/default/widgets/x", path + "?watch=1"} {
		d.status(t, d.root, p, http.StatusServiceUnavailable)
	}
	if n := arrived(server, a.below+"/"); n != 0 {
		t.Errorf("the claimant received %d requests, from Fairlead or kube-apiserver", n)
	}
	d.status(t, d.root, a.other, http.StatusOK)
	status, body := alone.Get(t, d.root, d.admin.URL+"/metrics")
	if status != http.StatusOK || !strings.Contains(body, fmt.Sprintf("aggregator_unavailable_apiservice_total{name=%q,reason=\"ProtectedGroup\"}", a.name)) ||
		!strings.Contains(body, fmt.Sprintf(`fairlead_registry_entries{kind="refused"} %d`, len(claimants()))) {
		t.Errorf("metrics: %d", status)
	}
}
