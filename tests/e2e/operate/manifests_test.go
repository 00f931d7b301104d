//go:build e2e

package operate

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
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
	if len(line) < 8 {
		t.Fatalf("%d arguments were found, want at least 8", len(line))
	}
	a := command(t, "", w.fairlead, line...)
	for fault := range strings.SplitSeq(strings.TrimSpace(a.Errs), "\n") {
		if !strings.Contains(fault, "no such file or directory") && !strings.Contains(fault, "--kubeconfig is required outside a pod") {
			t.Errorf("%v: %s", line, fault)
		}
	}
}

// testProtected tries to claim Kubernetes' own groups, and compares the policy's list with Fairlead's.
func testProtected(t *testing.T, w *world) {
	manifest := w.kustomize(t, "base")
	list := regexp.MustCompile(`(?s)expression: '\["(.*?)\]'`).FindStringSubmatch(manifest)
	if list == nil {
		t.Fatalf("no list of groups in:\n%s", manifest)
	}
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
		if refused := e.Local() || e.Verdict.Reason == registry.ReasonProtectedGroup; refused != (e.GroupVersion.Group != "open.example.com") {
			t.Errorf("group %q: refused by Fairlead: %v", e.GroupVersion.Group, refused)
		}
	}
	// Every group that kube-apiserver registers itself must be in the list.
	automanaged := strings.Fields(w.ask(t, "get apiservices -l kube-aggregator.kubernetes.io/automanaged=onstart -o name"))
	if len(automanaged) < 10 {
		t.Fatalf("kube-apiserver registers %d of its own", len(automanaged))
	}
	for _, name := range automanaged {
		if _, group, _ := strings.Cut(strings.TrimPrefix(name, "apiservice.apiregistration.k8s.io/"), "."); !slices.Contains(groups, group) {
			t.Errorf("group %q of kube-apiserver is not protected", group)
		}
	}
	a := command(t, strings.ReplaceAll(protected, "v9", "v8"), w.kubectl, "--kubeconfig", w.direct, "apply", "-f", "-")
	if a.Code == 0 || !strings.Contains(a.Errs, "no service may claim Kubernetes' own group batch") {
		t.Errorf("claiming batch: exit code %d\n%s%s", a.Code, a.Out, a.Errs)
	}
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
	if a := try("", "delete", "endpointslice", "-n", "default", "another"); !strings.Contains(a.Errs, "forbidden") {
		t.Errorf("another EndpointSlice: %s", a.Errs)
	}
}
