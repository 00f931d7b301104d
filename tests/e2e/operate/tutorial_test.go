//go:build e2e

package operate

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/volley"
	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

// testTutorial runs docs/tutorial.md, block by block, and compares the output with what it shows.
// Clients send requests through HAProxy from the first replica to the way back: none may fail.
func testTutorial(t *testing.T, w *world) {
	newer := filepath.Join(w.dir, "fairlead-newer")
	must.Get(exec.CommandContext(t.Context(), "go", "build", "-ldflags=-X main.version=v0.2.0", "-o", newer, "github.com/fairlead-proxy/fairlead/cmd/fairlead").CombinedOutput())(t) // which may take minutes
	c := newControlPlane(t, w, layout{port: "6443", balancers: []string{balancer}, fairlead: "8443"}, map[string]string{image + "v0.1.0": w.fairlead, image + "v0.2.0": newer})
	c.walk(t, 1, 2, 3, 4, 5, 6, 7)
	t.Run("kubeadm", func(t *testing.T) { testKubeadm(t, c) })
}

const image = "ghcr.io/fairlead-proxy/fairlead:" // the shipped manifests'

// testTopologies follows the tutorial to everything and back, changed by docs/topologies.md.
func testTopologies(t *testing.T, w *world) {
	for _, l := range []layout{
		{section: "HAProxy and keepalived on the control planes", port: "8443", balancers: nodes, fairlead: "9443"},
		{section: "kube-vip", port: "6443", fairlead: "8443"},
	} {
		t.Run(l.section, func(t *testing.T) {
			newControlPlane(t, w, l, map[string]string{image + "v0.1.0": w.fairlead}).walk(t, 1, 2, 3, 4, 6)
		})
	}
}

// walk follows steps of the tutorial.
func (c *controlPlane) walk(t *testing.T, steps ...int) {
	t.Helper()
	top := t
	c.metricsServer(t)
	titles := []string{"1. Look at what is there", "2. Install it on all three", "3. One node first", "4. Everything", "5. Upgrade", "6. Back in a minute", "7. Forward again, and the worst day"}
	terminal := documented(t, "tutorial.md", titles[0])[0].text // the blocks share one
	if c.section != "" {
		terminal += documented(t, "topologies.md", c.section)[0].text
	}
	var loads []*volley.Load
	var second *cluster.Part
	for _, step := range steps {
		done := t.Run(titles[step-1], func(t *testing.T) {
			blocks := documented(t, "tutorial.md", titles[step-1])
			begun, printed := time.Now(), ""
			switch step {
			case 3: // until step 6
				second = must.Get(c.w.Run(t.Context(), cluster.Command{Name: c.section + "second-terminal", Path: "bash", Args: []string{"-c", blocks[0].text}, Env: c.env()}))(t)
				blocks = blocks[1:]
				loads = append(loads, c.clients(top))
			case 5, 6: // HAProxy reloads asynchronously, and these clients must reach a Fairlead
				c.eventually(t, "for i in 1 2 3 4 5 6; do kubectl get --raw /fairlead/status || exit 1; done")
				if step == 5 {
					loads = append(loads, c.clients(top))
				}
			case 7:
				c.publishing(t)
			}
			for _, b := range blocks {
				if b.kind == "text" {
					compare(t, b.text, printed)
					continue
				}
				printed = c.follow(t, terminal+b.text)
			}
			switch step {
			case 5:
				for _, node := range nodes {
					c.eventually(t, "kubectl fairlead status --server=https://"+node+":"+c.fairlead+" -o 'jsonpath={.version}' | grep v0.2.0")
				}
			case 6:
				for _, node := range nodes {
					c.eventually(t, "! "+running(node, "secure-port="+c.fairlead))
				}
				took := time.Since(begun)
				t.Logf("the way back took %s", took.Round(time.Second))
				check.Same(t, true, took <= time.Minute, "that is more than a minute")
				second.Kill()
				check.Same(t, "", read(t, second.LogFile()), "what the second terminal printed")
				for _, load := range loads {
					shots := load.Stop()
					if volley.Judge(t, shots, 0, func(s *volley.Shot) bool { return s.Failed() || s.Cut() }); len(shots) < 400 {
						t.Error("that is too few")
					}
				}
			case 7:
				c.eventually(t, "kubectl get --raw /fairlead/status")
				c.eventually(t, "kubectl get endpointslice kubernetes -o wide | grep 8443.*10.0.0.11,10.0.0.12,10.0.0.13")
			}
		})
		if !done {
			t.FailNow() // each step needs the earlier ones
		}
	}
}

// documented returns the blocks of a section of a document.
func documented(t *testing.T, page, title string) []block {
	t.Helper()
	_, rest, found := strings.Cut(read(t, "../../../docs/"+page), "# "+title+"\n")
	must.Be(t, found, "%s has no section %q", page, title)
	section, _, _ := strings.Cut(rest, "\n#")
	return blocksOf(section)
}

// compare requires that the output is what a document shows, where … stands for anything in a line,
// or for any lines. Widths of columns may differ.
func compare(t *testing.T, shown, printed string) {
	t.Helper()
	flat := func(text string) string {
		return regexp.MustCompile(`(?m)^ | $`).ReplaceAllString(regexp.MustCompile(` +`).ReplaceAllString(text, " "), "")
	}
	pattern := regexp.MustCompile(`(?m)^…\n`).ReplaceAllString(regexp.QuoteMeta(flat(shown)), "(?:.*\n)*")
	if !regexp.MustCompile("^" + strings.ReplaceAll(pattern, "…", ".*") + "$").MatchString(flat(printed)) {
		t.Errorf("it prints\n%s\nand the document shows\n%s", printed, shown)
	}
}

// metricsServer runs an extension server instead of metrics-server, for its Service.
func (c *controlPlane) metricsServer(t *testing.T) {
	t.Helper()
	s := extension.Start(t, extension.Config{
		GroupVersions: []string{"metrics.k8s.io/v1beta1"}, Address: "0.0.0.0:443", Names: []string{"metrics-server.kube-system.svc"}, RejectWith: http.StatusUnauthorized,
		RequestHeaderCA: suite.Pool(t, "/etc/netns/"+firstNode+"/kubernetes/pki/front-proxy-ca.crt"), AllowedNames: []string{"front-proxy-client"},
	})
	c.follow(t, `kubectl apply -f - <<<"$0"`, fmt.Sprintf(metricsServer, laptop, base64.StdEncoding.EncodeToString(s.CA.PEM())))
	c.eventually(t, "kubectl get --raw /apis/metrics.k8s.io/v1beta1")
}

const metricsServer = `
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: clients}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
 subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: kube-apiserver-kubelet-client}]}
---
{apiVersion: v1, kind: Service, metadata: {namespace: kube-system, name: metrics-server}, spec: {ports: [{port: 443}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: kube-system, name: metrics-server, labels: {kubernetes.io/service-name: metrics-server}}
addressType: IPv4
ports: [{name: "", port: 443}]
endpoints: [{addresses: ["%s"]}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec: {group: metrics.k8s.io, version: v1beta1, groupPriorityMinimum: 100, versionPriority: 100, service: {namespace: kube-system, name: metrics-server}, caBundle: %q}
`

// publishing follows docs/operations.md for clients inside the cluster while no Fairlead runs: in
// the next step the replicas publish themselves, and no kube-apiserver does.
func (c *controlPlane) publishing(t *testing.T) {
	t.Helper()
	c.follow(t, `mkdir deploy/own
printf 'resources: [../base]\ncomponents: [../components/entrypoint, ../components/static-pod]\n' > deploy/own/kustomization.yaml
kubectl apply -k deploy/own`)
	for _, node := range nodes {
		edit(t, filepath.Join(c.folder, node, "fairlead.yaml"), "- --secure-port=8443", "- --secure-port=8443\n        - --publish-kubernetes-endpoints\n        - --advertise-address=$(HOST_IP)")
		edit(t, filepath.Join(c.folder, node, "fairlead.yaml"), "from=endpointslice", "from=lease")
		edit(t, "/etc/netns/"+node+"/kubernetes/manifests/kube-apiserver.yaml", "- --secure-port=6443", "- --secure-port=6443\n    - --endpoint-reconciler-type=none")
	}
	for _, node := range nodes {
		c.eventually(t, running(node, "endpoint-reconciler-type=none")+" && curl -fsk https://"+node+":6443/readyz")
	}
}

// running returns a command that checks whether a node has such a process.
func running(node, what string) string {
	return "ip netns pids " + node + " | xargs ps -o args= -p | grep -q " + what
}

// clients sends requests through HAProxy, for a kube-apiserver and the extension server in turn.
// Half of them need a new connection.
func (c *controlPlane) clients(t *testing.T) *volley.Load {
	t.Helper()
	pki := "/etc/netns/" + firstNode + "/kubernetes/pki/"
	front := cluster.Endpoint{URL: "https://" + net.JoinHostPort(balancer, c.port), CAFile: pki + "ca.crt"}
	admin := cluster.Credentials{Pair: cluster.Pair{CertFile: pki + "apiserver-kubelet-client.crt", KeyFile: pki + "apiserver-kubelet-client.key"}}
	kept, fresh := suite.Client(t, front, admin), suite.Client(t, front, admin)
	// As client-go: HAProxy closes connections that are silent for longer.
	kept.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second}
	fresh.Transport.(*http.Transport).DisableKeepAlives = true
	paths := []string{"/api/v1/namespaces", "/apis/metrics.k8s.io/v1beta1/namespaces/default/widgets"}
	request := func(i int) (method, url, body string) { return http.MethodGet, front.URL + paths[i/2%len(paths)], "" }
	return (&volley.Load{Every: 25 * time.Millisecond, Clients: []*http.Client{kept, fresh}, Make: request}).Start(t)
}

// testKubeadm follows docs/operations.md on a node of the tutorial, and runs each command as written.
func testKubeadm(t *testing.T, c *controlPlane) {
	blocks := documented(t, "operations.md", "On kubeadm")
	if len(blocks) != 5 { // three for a node, and two that need none
		t.Fatalf("%d blocks, want 5", len(blocks))
	}
	// The timer's renewal: Fairlead uses the new certificate.
	const certificate = `kubectl --server=https://10.0.0.11:8444 get --raw /metrics | grep '^fairlead_certificate_expiration.*use="kubeconfig"'`
	before := strings.TrimSpace(c.follow(t, certificate))
	c.on(t, firstNode, "systemctl start fairlead-kubeconfig.service")
	c.eventually(t, certificate+" | grep -vF '"+before+"'")
	c.on(t, firstNode, blocks[0].text)
	file := filepath.Join(c.folder, firstNode, "kubeadm.yaml")
	edit(t, file, "apiServer: {}", "apiServer: {certSANs: [front.example.com]}")
	own, _, _ := strings.Cut(fmt.Sprintf(kubeadmConfiguration, 1, "", c.port), "---")
	suite.Put(t, file, own+"---\n"+read(t, file))
	c.on(t, firstNode, blocks[1].text)
	names := c.on(t, firstNode, "openssl x509 -in /etc/kubernetes/pki/apiserver.crt -noout -ext subjectAltName")
	check.Has(t, names, "DNS:front.example.com", "IP Address:"+balancer)
	lint := c.on(t, firstNode, strings.ReplaceAll(blocks[2].text, "<node>", firstNode))
	check.Same(t, 1, strings.Count(lint, "\n"), "lines that lint reports of a node made by kubeadm:\n%s", lint)
	check.Has(t, lint, "--requestheader-uid-headers")
}

// stub stands for each program of the tutorial that reaches other machines, and for time. It
// records how it is called and what it is sent, and says what the tutorial waits for. Only the one
// command that is to fail does not, so that its wait gives up.
const stub = `#!/bin/sh
{ echo "${0##*/}"; for argument; do echo "<$argument>"; done; } >>"$RECORD"
case $0 in
*/ssh) cat >>"$RECORD" ;;
*/sleep) exit 1 ;;
*/date) echo tick >>"$RECORD.time"; echo $(($(wc -l <"$RECORD.time") * 100)) ;;
*/kubectl) echo 'fairlead_request_total{group="metrics.k8s.io",verb="get"} v0.2.0 Users are served' ;;
esac
`

// testShells requires that sh, bash and zsh make the same commands of the tutorial, and that none
// of its waits is endless.
func testShells(t *testing.T) {
	var script, changed string
	for _, b := range blocksOf(read(t, "../../../docs/tutorial.md")) {
		if b.kind == "sh" {
			script += b.text
		}
	}
	first := documented(t, "tutorial.md", "1. Look at what is there")[0].text
	for _, section := range []string{"HAProxy and keepalived on the control planes", "kube-vip"} {
		changed += first + documented(t, "topologies.md", section)[0].text + documented(t, "tutorial.md", "4. Everything")[0].text + documented(t, "tutorial.md", "6. Back in a minute")[0].text
	}
	want := ""
	for _, shell := range []string{"bash", "dash", "sh", "zsh"} {
		t.Run(shell, func(t *testing.T) {
			got := recorded(t, shell, script+changed)
			n := strings.Count(got, "\nssh\n")
			must.Be(t, n >= 40 && strings.Contains(got, "<https://10.0.0.13:8444/readyz>"), "%d commands were run on nodes:\n%s", n, got)
			if want == "" {
				want = got // bash's, which the other tests run
			}
			check.Same(t, want, got, "bash (-) and %s (+)", shell)
		})
	}
}

// recorded runs a script with a shell, and returns what the stubs record.
func recorded(t *testing.T, shell, script string) string {
	t.Helper()
	dir := t.TempDir()
	copyDeploy(t, dir)
	for _, name := range []string{"ssh", "sleep", "date", "kubectl", "curl"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(stub), 0o700))
	}
	args := []string{"-c", script}
	if shell == "zsh" {
		args = []string{"-f", "-c", script} // without this machine's start-up files
	}
	a := suite.Run(t, exec.CommandContext(t.Context(), shell, append([]string{"-n"}, args...)...), "")
	check.Same(t, suite.Answer{}, a, "%s -n", shell)
	cmd := exec.CommandContext(t.Context(), shell, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "RECORD="+filepath.Join(dir, "record"))
	check.Same(t, "", suite.Run(t, cmd, "").Errs, "errors of %s", shell)
	return read(t, filepath.Join(dir, "record"))
}
