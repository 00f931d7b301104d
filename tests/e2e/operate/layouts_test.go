//go:build e2e

package operate

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testLayouts lets init write the manifests of each layout for this cluster, which gets the nodes
// of two control planes with HAProxy as in kubeadm's guide for high availability. kube-apiserver
// accepts what it writes, and Fairlead the arguments.
func testLayouts(t *testing.T, w *world) {
	w.alone.Lock() // the Service kubernetes is kube-apiserver's
	defer w.alone.Unlock()
	w.clear(t)
	w.apply(t, controlPlanes)
	for i, address := range []string{"10.79.0.1", "10.79.0.2"} {
		status := fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":%q}]}}`, address)
		succeed(t, "", w.kubectl, "--kubeconfig", w.direct, "patch", "node", fmt.Sprintf("layouts-cp%d", i+1), "--subresource=status", "--type=merge", "-p", status)
	}
	defer w.ask(t, "delete node layouts-cp1 layouts-cp2")
	defer w.ask(t, "delete pod -n kube-system --force --grace-period=0 haproxy-layouts-cp1")
	for _, tt := range []struct {
		layout string
		flags  []string
		args   []string // expressions
		object string
	}{
		{"control-plane", []string{"--components=entrypoint,audit,write-status,events"}, []string{"--secure-port=9443", "--local-apiservers-from=lease", "--write-status"}, "DaemonSet"},
		{"static-pod", []string{"--admin-secure-port=8555", "--components=events"}, []string{"--secure-port=9443", "--admin-secure-port=8555", `--local-apiserver=https://10\.79\.0\.2:6443`, "--emit-events"}, "Pod"},
		{"load-balancer", nil, nil, "Deployment"},
		{"managed", []string{"--serving-names=front.example.com", "--components=renew"}, []string{"--local-identity=impersonate"}, "CronJob"},
		{"etcd", []string{"--etcd-servers=https://192.0.2.1:2379"}, []string{"--registry=etcd:https://192.0.2.1:2379,dir:/etc/fairlead/registry"}, "Deployment"},
	} {
		t.Run(tt.layout, func(t *testing.T) {
			out := filepath.Join(w.dir, "layout-"+tt.layout)
			line := append([]string{"init", "--kubeconfig=" + w.direct, "--layout=" + tt.layout, "--deploy=" + filepath.Join(w.dir, "deploy"), "--out=" + out, "--yes"}, tt.flags...)
			printed := succeed(t, "", filepath.Join(w.dir, "kubectl-fairlead"), line...)
			const taken = "to do: port 8443: pod kube-system/haproxy-layouts-cp1 on layouts-cp1 uses it"
			if !strings.Contains(printed, "kubectl apply -k "+out) || (tt.layout != "etcd") != strings.Contains(printed, taken) {
				t.Errorf("it prints\n%s", printed)
			}
			rendered := succeed(t, "", w.kubectl, "kustomize", out)
			accepted(t, w, rendered)
			if tt.layout == "static-pod" {
				rendered = succeed(t, "", w.kubectl, "kustomize", "--load-restrictor=LoadRestrictionsNone", out+"/node")
				accepted(t, w, rendered)
			}
			for _, want := range append(slices.Clone(tt.args), "kind: "+tt.object) {
				if !regexp.MustCompile(`(?m)^[- ]*` + want + `$`).MatchString(rendered) {
					t.Errorf("no %s in:\n%s", want, rendered)
				}
			}
			testFlags(t, w, rendered)
			if again := succeed(t, "", filepath.Join(w.dir, "kubectl-fairlead"), line...); !strings.HasSuffix(again, "nothing changed\n") {
				t.Errorf("again, it prints\n%s", again)
			}
		})
	}
}

// accepted lets kube-apiserver check manifests, over those that another case has applied.
func accepted(t *testing.T, w *world, rendered string) {
	t.Helper()
	out := succeed(t, rendered, w.kubectl, "--kubeconfig", w.direct, "apply", "--dry-run=server", "-f", "-")
	if n := strings.Count(out, "(server dry run)"); n != strings.Count("\n"+rendered, "\nkind: ") {
		t.Errorf("%d objects were accepted:\n%s", n, out)
	}
}

const controlPlanes = `
{apiVersion: v1, kind: Node, metadata: {name: layouts-cp1, labels: {node-role.kubernetes.io/control-plane: ""}}}
---
{apiVersion: v1, kind: Node, metadata: {name: layouts-cp2, labels: {node-role.kubernetes.io/control-plane: ""}}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: kube-system, name: haproxy-layouts-cp1}, spec: {nodeName: layouts-cp1, hostNetwork: true, containers: [
  {name: haproxy, image: "haproxy:2.8", livenessProbe: {httpGet: {host: localhost, path: /healthz, port: 8443, scheme: HTTPS}}}]}}
`
