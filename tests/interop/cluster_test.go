//go:build e2e

package interop

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// clusterCase is a program that a shell runs. Its environment has the road: URL, KUBECONFIG, CA, and NAME, which no
// other run has; and what both roads share: CERT and KEY of an administrator, FRONTCERT and FRONTKEY of a front proxy,
// MANY (groups), LONG (a field) and BODY, which are files, and KUBECTL.
type clusterCase struct{ name, run string }

const (
	quiet = `curl -sS -o /dev/null -w '%{http_code} %{size_download}\n' --cacert $CA `
	// code is the status alone: the messages are each program's own, and kube-apiserver cuts some 401s short.
	code  = `curl -sS -o /dev/null -w '%{http_code}\n' 2>/dev/null --cacert $CA `
	admin = quiet + `--cert $CERT --key $KEY `
	front = `curl -sS --cacert $CA --cert $FRONTCERT --key $FRONTKEY `
	// refused says for each of 15 what a wrong token is told: exec plug-ins renew on 401 only.
	refused = `for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do ` + code + `-H 'Authorization: Bearer wrong' -H 'Content-Type: application/json' --data-binary @$BODY `
	upgrade = `-H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' `
	remote  = `$URL/apis/node.example.com/v1/widgets`
)

// clusterCases are what clients do at a kube-apiserver.
var clusterCases = []clusterCase{
	{name: "client-node", run: `node testdata/kube.js $NAME`},
	{name: "python kubernetes", run: `/usr/bin/python3 testdata/kube.py $NAME`},
	{name: "kubectl", run: `set -e; $KUBECTL create configmap $NAME --from-literal=n=1 >/dev/null; $KUBECTL label configmap $NAME by=me >/dev/null; $KUBECTL get configmap $NAME -o jsonpath='{.data.n}{.metadata.labels}'
$KUBECTL get configmaps -n kube-public -l big=1 -o json | grep -c '"x": "'; $KUBECTL delete configmap $NAME | wc -l; $KUBECTL get configmap $NAME 2>&1 | sed "s/$NAME/NAME/"; $KUBECTL explain configmap | head -3; $KUBECTL get --raw /apis/node.example.com/v1`},
	{name: "kubectl, stopped for 65 s", run: `$KUBECTL create configmap $NAME --from-literal=n=1 >/dev/null; $KUBECTL get configmap $NAME --watch --no-headers -o custom-columns=N:.data.n >$OUT & pid=$!
until grep -q 1 $OUT 2>/dev/null; do sleep .1; done; kill -STOP $pid; sleep 65; kill -CONT $pid; $KUBECTL patch configmap $NAME -p '{"data":{"n":"2"}}' >/dev/null
for i in $(seq 100); do if grep -q 2 $OUT; then break; fi; sleep .1; done; kill $pid; cat $OUT`},
	{name: "curl, 3.3 MB after a refused upgrade", run: admin + `--http1.1 ` + upgrade + `"$URL/api/v1/namespaces/kube-public/configmaps?labelSelector=big%3D1"`},
	{name: "curl, WebSocket watch at a server without WebSockets", run: code + `--cert $CERT --key $KEY --http1.1 ` + upgrade + `"` + remote + `?watch=1"`},
	{name: "ws, watch at a server without WebSockets", run: `node testdata/ws.js "` + remote + `?watch=1"`},
	{name: "ws, watch at kube-apiserver", run: `node testdata/ws.js "$URL/api/v1/namespaces/kube-public/configmaps?watch=1&labelSelector=big%3D1"`},
	{name: "curl h1, 1,500 groups", run: front + `--http1.1 -H @$MANY -H 'Content-Type: application/json' -d '{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}' $URL/apis/authentication.k8s.io/v1/selfsubjectreviews | grep -o group- | wc -l`},
	{name: "curl h1, a wrong token with 400 KB", run: refused + `--http1.1 $URL/api/v1/namespaces/default/configmaps; done; true`},
	{name: "curl h2, a wrong token with 400 KB", run: refused + `--http2 $URL/api/v1/namespaces/default/configmaps; done; true`},
	{name: "curl h1, a wrong token with 400 KB, to the extension server", run: refused + `--http1.1 ` + remote + `; done; true`},
	{name: "curl h2, a wrong token with 400 KB, to the extension server", run: refused + `--http2 ` + remote + `; done; true`},
	{name: "curl h1, a field of 100 KB", run: admin + `--http1.1 -H @$LONG $URL/api/v1/namespaces/default`},
	{name: "curl h1, PATCH with Expect", run: admin + `--http1.1 -v -X PATCH -H 'Expect: 100-continue' -H 'Content-Type: application/merge-patch+json' --data-binary @$BODY $URL/api/v1/namespaces/default 2>&1 | grep -E '^< HTTP|^[0-9]'`},
	{name: "curl h1, list of 5 MB of the extension server", run: admin + `--http1.1 ` + remote + `?size=5000000`},
	{name: "curl h2, POST answered after 20 s", run: admin + `--http2 -H 'Content-Type: application/json' --data-binary @$BODY "` + remote + `?for=20"`},
}

// TestCluster does the same through Fairlead and at a kube-apiserver, whose own aggregator has the
// same extension server.
func TestCluster(t *testing.T) {
	c := suite.Start(t, cluster.Config{Dir: suite.Folder(t, "interop")})
	backend := cluster.Backend{Namespace: "odd", Service: "node", CAFile: c.PKI.Serving.CertFile, GroupVersions: []string{"node.example.com/v1"}, Port: alone.Ports(t, 1)[0]}
	pair := must.Get(c.PKI.Serving.Issue("node", cluster.Leaf{User: "node", Names: []string{"node.odd.svc", "localhost", "127.0.0.1"}}))(t)
	run(t, script("node", "server.js", "https")("", backend.Port, pair, 0))
	must.Do(t, c.Register(t.Context(), backend))
	door := must.Get(c.StartFairlead(t.Context(), cluster.Fairlead{Path: fairlead(t)}))(t)
	core := must.Get(kubernetes.NewForConfig(c.Endpoint().RESTConfig(c.Admin())))(t)
	for i := range 4 { // 4 of 820 KB are 3.3 MB
		one := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("big-", i), Labels: map[string]string{"big": "1"}}, Data: map[string]string{"x": strings.Repeat("x", 820<<10)}}
		must.Get(core.CoreV1().ConfigMaps("kube-public").Create(t.Context(), one, metav1.CreateOptions{}))(t)
	}
	dir := t.TempDir()
	put := func(name, text string) string {
		file := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
		return name + "=" + file
	}
	groups := "X-Remote-User: many\n"
	for i := range 1500 { // 200 bytes each: 300 KB
		groups += fmt.Sprintf("X-Remote-Group: group-%04d%s\n", i, strings.Repeat("x", 160))
	}
	shared := append(os.Environ(), "CERT="+c.PKI.Admin.CertFile, "KEY="+c.PKI.Admin.KeyFile, "FRONTCERT="+c.PKI.FrontProxyPair.CertFile, "FRONTKEY="+c.PKI.FrontProxyPair.KeyFile,
		"KUBECTL="+suite.Tool(t, "kubectl"), put("MANY", groups), put("LONG", "X-Long: "+strings.Repeat("x", 100<<10)), put("BODY", `{"x":"`+strings.Repeat("x", 400<<10)+`"}`))
	roads := [2]cluster.Endpoint{c.Endpoint(), door.Endpoint}
	for i, road := range roads {
		client := suite.Client(t, road, c.Admin())
		suite.Eventually(t, time.Minute, "the extension server is served", func() (bool, string) {
			code, body := alone.Get(t, client, road.URL+"/apis/node.example.com/v1")
			return code == http.StatusOK, body
		})
		must.Do(t, road.WriteKubeconfig(filepath.Join(dir, fmt.Sprint("kubeconfig-", i)), c.Admin()))
	}
	for n, tc := range clusterCases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var got [2]string
			for i, road := range roads {
				cmd := exec.CommandContext(t.Context(), "bash", "-c", tc.run)
				name := fmt.Sprintf("case-%d-%d", n, i)
				cmd.Env = append(slices.Clip(shared), "NAME="+name, "OUT="+filepath.Join(dir, name), "URL="+road.URL, "CA="+road.CAFile, "KUBECONFIG="+filepath.Join(dir, fmt.Sprint("kubeconfig-", i)))
				out, err := cmd.CombinedOutput()
				got[i] = strings.NewReplacer(name, "NAME", road.URL, "URL").Replace(string(out))
				check.Fault(t, "", err, "%s", road.URL)
			}
			t.Log(got[0])
			check.Same(t, got[0], got[1], "directly, and here")
		})
	}
}
