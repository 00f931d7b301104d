//go:build e2e

package directory

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

const crd = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.sea.example.com}
spec:
  group: sea.example.com
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`

// testLocal runs Fairlead with a directory in front of a real kube-apiserver.
func testLocal(t *testing.T, shared *world) {
	browsers := []string{`--cors-allowed-origins=//mine\.example\.com(:|$)`, "--strict-transport-security-directives=max-age=1,preload"}
	c := suite.Start(t, cluster.Config{APIServerArgs: browsers})
	w := *shared
	w.keys = alone.Keys{Clients: c.PKI.Client.CA, Fronts: c.PKI.FrontProxy.CA, Servers: c.PKI.Serving.CA}
	registry := t.TempDir()
	server := w.extension(t, "widgets.example.com/v1", "sea.example.com/v1", "apps/v1")
	put(t, registry, server, "widgets.example.com", "")
	put(t, registry, server, "apps", "")
	direct := kubectl.As(t, c.Endpoint(), c.Admin())
	direct.Feed(t, crd, "apply", "-f", "-")
	direct.Soon(t, "the kind is served", "get", "boats.sea.example.com", "-A") // so that Fairlead lists it from its start
	d := w.open(t, registry, append(browsers, "--kubeconfig="+direct.Kubeconfig)...)
	k := kubectl.As(t, d.front, c.Admin())
	d.becomes(t, d.root, widgets, http.StatusOK)
	for name, want := range map[string]string{"v1.batch": "17400/15 ", "v1.sea.example.com": "1000/100 "} {
		t.Run(name+" registers itself", func(t *testing.T) {
			suite.Eventually(t, time.Minute, "registered", func() (bool, string) {
				a := k.Try(t, "", "get", "apiservice", name, "-o", "jsonpath={.spec.groupPriorityMinimum}/{.spec.versionPriority} {.metadata.labels}")
				return strings.HasPrefix(a.Out, want) && strings.Contains(a.Out, "automanaged"), a.Out + a.Errs
			})
		})
	}
	for args, want := range map[string]string{
		"get apiservices":                                          "x/widgets-example-com",
		"explain deployment.spec.replicas":                         "replicas",
		"get widgets.widgets.example.com -A -o name":               "widget.widgets.example.com/",
		"get boats.sea.example.com -A":                             "",
		"api-resources --api-group=apiregistration.k8s.io -o wide": "get,list,watch ", // not the verbs of kube-apiserver's own aggregator
	} {
		t.Run(args, func(t *testing.T) { k.Says(t, 0, "", args, want) })
	}
	t.Run("the cluster authorizes", func(t *testing.T) {
		alice := w.client(t, c.StaticToken("alice"))
		d.status(t, alice, widgets, http.StatusForbidden)
		k.Says(t, 0, "", "create clusterrole widgets --verb=list --resource=widgets.widgets.example.com")
		k.Says(t, 0, "", "create clusterrolebinding widgets --clusterrole=widgets --user=alice")
		d.becomes(t, alice, widgets, http.StatusOK)
	})
	t.Run("a protected group stays local", func(t *testing.T) {
		k.Says(t, 0, "", "create deployment local --image=none -n default", "deployment.apps/local created")
		for _, r := range server.Requests() {
			check.Same(t, true, !strings.HasPrefix(r.Target, "/apis/apps/v1/") || r.Target == "/apis/apps/v1/", "the extension server received %s", r.Target)
		}
	})
	t.Run("browsers are told the same", func(t *testing.T) {
		for _, client := range []*http.Client{suite.Client(t, d.front, c.Admin()), {Transport: &http.Transport{TLSClientConfig: suite.TLS(t, d.front, c.Admin())}}} {
			told := func(e cluster.Endpoint, method, path, origin string) string {
				a := must.Get(ask.Do(t.Context(), client, method, e.URL+path, http.Header{"Origin": {origin}}, ""))(t)
				all := fmt.Sprint(a.Code, a.Header.Values("Strict-Transport-Security"))
				for _, name := range []string{"Allow-Origin", "Allow-Methods", "Allow-Headers", "Expose-Headers", "Allow-Credentials"} {
					all += fmt.Sprint(a.Header.Values("Access-Control-" + name))
				}
				return all
			}
			for _, asks := range [][2]string{{"GET", "https://mine.example.com:8443"}, {"GET", "https://mine.example.com.evil.org"}, {"OPTIONS", "https://mine.example.com"}} {
				want := told(c.Endpoint(), asks[0], "/api/v1/nodes", asks[1])
				check.Same(t, asks[0] == "GET" && strings.HasSuffix(asks[1], "org"), strings.HasSuffix(want, "[max-age=1; preload][][][][][]"), "directly: %s", want)
				for _, path := range []string{"/api/v1/nodes", widgets, "/apis", "/openapi/v3", "/fairlead/status"} {
					check.Same(t, want, told(d.front, asks[0], path, asks[1]), "%v %s", asks, path)
				}
			}
		}
	})
	t.Run("a shadowed CRD", func(t *testing.T) {
		put(t, registry, server, "sea.example.com", "")
		d.becomes(t, d.root, "/apis/sea.example.com/v1/widgets", http.StatusOK)
		suite.Eventually(t, time.Minute, "reported", func() (bool, string) {
			_, body := d.ask(t, d.root, "/fairlead/status")
			return strings.Contains(body, "the local apiserver serves it too"), body
		})
	})
}

// testClaimed lets an APIService claim a group-version of kube-apiserver's, whose own aggregator
// obeys it: Fairlead must not, and must not forward such requests to a server that does.
func testClaimed(t *testing.T, shared *world) {
	c := suite.Start(t, cluster.Config{})
	w := *shared
	w.keys = alone.Keys{Clients: c.PKI.Client.CA, Fronts: c.PKI.FrontProxy.CA, Servers: c.PKI.Serving.CA}
	server := w.extension(t, "apps/v1beta1")
	must.Do(t, c.Register(t.Context(), cluster.Backend{
		Namespace: "apps", Service: "one", Port: server.Port(), CAFile: c.PKI.Serving.CertFile, GroupVersions: []string{"apps/v1beta1"},
	}))
	const path = "/apis/apps/v1beta1/widgets"
	root := w.client(t, c.Admin())
	suite.Eventually(t, time.Minute, "obeyed by kube-apiserver itself", func() (bool, string) {
		status, body := alone.Get(t, root, c.Endpoint().URL+path)
		return status == http.StatusOK, body
	})
	front := must.Get(c.StartFairlead(t.Context(), cluster.Fairlead{Path: w.bin}))(t)
	suite.Eventually(t, time.Minute, "refused", func() (bool, string) {
		status, body := alone.Get(t, root, front.Endpoint.URL+path)
		return status == http.StatusServiceUnavailable && strings.Contains(body, "ProtectedGroup"), body
	})
	server.Forget()
	for _, p := range []string{path, "/apis/apps/v1beta1", path + "/x", path + "?watch=1"} {
		status, body := alone.Get(t, root, front.Endpoint.URL+p)
		check.Same(t, http.StatusServiceUnavailable, status, "%s: %s", p, body)
	}
	for _, r := range server.Requests() {
		check.Same(t, false, strings.HasPrefix(r.Target, path), "the claimant received %s, from Fairlead or kube-apiserver", r.Target)
	}
	if status, body := alone.Get(t, root, front.Endpoint.URL+"/apis/apps/v1/deployments"); status != http.StatusOK {
		t.Errorf("the group's own version: %d %s", status, body)
	}
}
