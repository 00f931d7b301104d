//go:build e2e

package managed

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

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
		if !slices.ContainsFunc(c.server.Requests(0), func(r extension.Request) bool {
			return r.Target == path && r.PeerName == c.peer && r.Header.Get("X-Remote-User") == "admin" && r.Status == 200
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
