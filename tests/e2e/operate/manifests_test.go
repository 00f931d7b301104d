//go:build e2e

package operate

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/manifests"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

func testManifests(t *testing.T, w *world) {
	static := read(t, "../../../deploy/static-pod/fairlead.yaml")
	for _, manifests := range []string{static, w.kustomize(t, "static-pod"), w.kustomize(t, "overlays/etcd")} { // the others are compared with the chart
		dryRun(t, w, manifests)
	}
	t.Run("flags", func(t *testing.T) { // TestEveryCombination of cmd/fairlead has the other overlays
		testFlags(t, w, static)
		testFlags(t, w, w.kustomize(t, "overlays/etcd"))
		testFlags(t, w, w.kustomize(t, "overlays/managed"))
		testFlags(t, w, w.kustomize(t, "overlays/behind"))
	})
	t.Run("Helm", func(t *testing.T) { testHelm(t, w) })
	t.Run("protected groups", func(t *testing.T) { testProtected(t, w) })
	t.Run("the entrypoint's reach", func(t *testing.T) { testReach(t, w) })
}

// testFlags runs the program with a manifest's arguments. It must complain only about missing files.
func testFlags(t *testing.T, w *world, rendered string) {
	line := manifests.Arguments(manifests.Serve(rendered), "192.0.2.1", "/etc/kubernetes", "/nowhere")
	must.Be(t, len(line) >= 8, "%d arguments were found, want at least 8", len(line))
	a := command(t, "", w.fairlead, line...)
	for fault := range strings.SplitSeq(strings.TrimSpace(a.Errs), "\n") {
		check.Same(t, true, strings.Contains(fault, "no such file or directory") || strings.Contains(fault, "--kubeconfig is required outside a pod"), "%v: %s", line, fault)
	}
}

// testProtected tries to claim Kubernetes' own groups, and compares the policy's list with Fairlead's.
func testProtected(t *testing.T, w *world) {
	manifest := w.kustomize(t, "base")
	list := regexp.MustCompile(`(?s)expression: '\["(.*?)\]'`).FindStringSubmatch(manifest)
	must.Be(t, list != nil, "no list of groups in:\n%s", manifest)
	var groups []string
	must.Do(t, json.Unmarshal([]byte(`["`+strings.ReplaceAll(list[1], "\n", " ")+"]"), &groups))
	objects := map[string]*apiregistrationv1.APIService{}
	for _, g := range append(slices.Clone(groups), "open.example.com") {
		o := &apiregistrationv1.APIService{Spec: apiregistrationv1.APIServiceSpec{Group: g, Version: "v7", Service: &apiregistrationv1.ServiceReference{Namespace: "a", Name: "b"}}}
		o.Name = "v7." + g
		objects[o.Name] = o
	}
	for _, e := range registry.Build(registry.Input{APIServices: objects, Complete: true}, nil).Entries() {
		// The group of APIServices itself is not refused: it is Local.
		check.Same(t, e.GroupVersion.Group != "open.example.com", e.Local() || e.Verdict.Reason == registry.ReasonProtectedGroup, "group %q is refused by Fairlead", e.GroupVersion.Group)
	}
	// Every group that kube-apiserver registers itself must be in the list.
	automanaged := strings.Fields(w.ask(t, "get apiservices -l kube-aggregator.kubernetes.io/automanaged=onstart -o name"))
	must.Be(t, len(automanaged) >= 10, "kube-apiserver registers %d of its own", len(automanaged))
	for _, name := range automanaged {
		_, group, _ := strings.Cut(strings.TrimPrefix(name, "apiservice.apiregistration.k8s.io/"), ".")
		check.Same(t, true, slices.Contains(groups, group), "group %q of kube-apiserver is not protected", group)
	}
	a := command(t, strings.ReplaceAll(protected, "v9", "v8"), w.kubectl, "--kubeconfig", w.direct, "apply", "-f", "-")
	check.Same(t, true, a.Code != 0 && strings.Contains(a.Errs, "no service may claim Kubernetes' own group batch"), "claiming batch: exit code %d\n%s%s", a.Code, a.Out, a.Errs)
}

// testReach tries, with Fairlead's account, what the entrypoint's Roles allow and its policy does
// not: Leases of others, and other endpoints.
func testReach(t *testing.T, w *world) {
	const lease = "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: kube-system, name: %s}}"
	const slice = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: default, name: %s}, addressType: IPv4, endpoints: []}"
	w.apply(t, read(t, "../../../deploy/components/entrypoint/rbac.yaml"))
	w.apply(t, fmt.Sprintf(lease, "reach-scheduler"))
	try := func(manifest string, args ...string) suite.Answer {
		return command(t, manifest, w.kubectl, append([]string{"--kubeconfig", w.direct, "--as=system:serviceaccount:kube-system:fairlead", "--dry-run=server"}, args...)...)
	}
	suite.Eventually(t, 30*time.Second, "kept from another's Lease", func() (bool, string) {
		a := try("", "delete", "lease", "-n", "kube-system", "reach-scheduler")
		return a.Code != 0 && strings.Contains(a.Errs, "nothing but its own"), a.Out + a.Errs
	})
	for manifest, may := range map[string]bool{
		fmt.Sprintf(lease, "fairlead-entrypoint-192-0-2-1-8443"): true, fmt.Sprintf(lease, "kube-controller-manager-reach"): false,
		fmt.Sprintf(slice, "kubernetes-3"): true, fmt.Sprintf(slice, "another"): false,
	} {
		if a := try(manifest, "create", "-f", "-"); may != (a.Code == 0) || !may && !strings.Contains(a.Errs, "nothing but its own") {
			t.Errorf("%s: exit code %d %s", manifest, a.Code, a.Errs)
		}
	}
	check.Has(t, try("", "delete", "endpointslice", "-n", "default", "another").Errs, "forbidden")
}

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
			check.Same(t, true, strings.Contains(printed, "kubectl apply -k "+out) && (tt.layout != "etcd") == strings.Contains(printed, taken), "it prints\n%s", printed)
			rendered := succeed(t, "", w.kubectl, "kustomize", out)
			accepted(t, w, rendered)
			if tt.layout == "static-pod" {
				rendered = succeed(t, "", w.kubectl, "kustomize", "--load-restrictor=LoadRestrictionsNone", out+"/node")
				accepted(t, w, rendered)
			}
			for _, want := range append(slices.Clone(tt.args), "kind: "+tt.object) {
				check.Same(t, true, regexp.MustCompile(`(?m)^[- ]*`+want+`$`).MatchString(rendered), "no %s in:\n%s", want, rendered)
			}
			testFlags(t, w, rendered)
			again := succeed(t, "", filepath.Join(w.dir, "kubectl-fairlead"), line...)
			check.Same(t, true, strings.HasSuffix(again, "nothing changed\n"), "again, it prints\n%s", again)
		})
	}
}

// accepted lets kube-apiserver check manifests, over those that another case has applied.
func accepted(t *testing.T, w *world, rendered string) {
	t.Helper()
	out := succeed(t, rendered, w.kubectl, "--kubeconfig", w.direct, "apply", "--dry-run=server", "-f", "-")
	check.Same(t, strings.Count("\n"+rendered, "\nkind: "), strings.Count(out, "(server dry run)"), "objects, and those that were accepted:\n%s", out)
}

const controlPlanes = `
{apiVersion: v1, kind: Node, metadata: {name: layouts-cp1, labels: {node-role.kubernetes.io/control-plane: ""}}}
---
{apiVersion: v1, kind: Node, metadata: {name: layouts-cp2, labels: {node-role.kubernetes.io/control-plane: ""}}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: kube-system, name: haproxy-layouts-cp1}, spec: {nodeName: layouts-cp1, hostNetwork: true, containers: [
  {name: haproxy, image: "haproxy:2.8", livenessProbe: {httpGet: {host: localhost, path: /healthz, port: 8443, scheme: HTTPS}}}]}}
`
