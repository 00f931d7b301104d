//go:build e2e

package operate

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// site is a cluster without an installation.
type site struct {
	*world
	helmPath string
}

// testInstall lets Helm install the chart into a separate cluster, upgrade and remove it.
func testInstall(t *testing.T, w *world) {
	s := newSite(t, w)
	s.apply(t, operatorCRDs)
	before := s.names(t)
	control := []string{"monitoring.enabled=true", "caFromNamespaces={default}"}
	balanced := append([]string{"mode=load-balancer", "writeStatus=true"}, control...)
	t.Run("install", func(t *testing.T) {
		s.helm(t, append([]string{"install", "fairlead", chart}, set(control)...)...)
		s.has(t, control)
	})
	t.Run("upgrade", func(t *testing.T) {
		s.helm(t, "upgrade", "fairlead", chart, "--reset-then-reuse-values", "--set", "emitEvents=true")
		s.has(t, append([]string{"emitEvents=true"}, control...))
		if args := s.args(t, "daemonset"); !strings.Contains(args, "--emit-events") {
			t.Errorf("the DaemonSet has %s", args)
		}
	})
	t.Run("another mode", func(t *testing.T) {
		s.helm(t, append([]string{"upgrade", "fairlead", chart, "--reset-values"}, set(balanced)...)...)
		s.has(t, balanced)
		if args := s.args(t, "deployment"); !strings.Contains(args, "--write-status") {
			t.Errorf("the Deployment has %s", args)
		}
		for _, gone := range []string{"daemonset.apps/fairlead", "role.rbac.authorization.k8s.io/fairlead-events"} {
			if strings.Contains(s.names(t), gone) {
				t.Errorf("%s is left over", gone)
			}
		}
	})
	t.Run("uninstall", func(t *testing.T) {
		s.helm(t, "uninstall", "fairlead")
		if after := s.names(t); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

func newSite(t *testing.T, w *world) *site {
	t.Helper()
	dir := filepath.Join(w.dir, "install")
	s := &site{world: &world{dir: dir, fairlead: w.fairlead, kubectl: w.kubectl, direct: filepath.Join(dir, "direct.kubeconfig")}, helmPath: suite.Tool(t, "helm")}
	s.Cluster = suite.Start(t, cluster.Config{Dir: dir, APIServerArgs: []string{"--advertise-address=10.79.0.1"}})
	s.core = must.Get(kubernetes.NewForConfig(s.Cluster.Endpoint().RESTConfig(s.Admin())))(t)
	must.Do(t, s.Cluster.Endpoint().WriteKubeconfig(s.direct, s.Admin()))
	suite.Eventually(t, 30*time.Second, "a namespace", func() (bool, string) {
		a := command(t, "", s.kubectl, "--kubeconfig", s.direct, "get", "namespace", "kube-system")
		return a.Code == 0, a.Errs
	})
	return s
}

// helm runs Helm, which must succeed without a warning.
func (s *site) helm(t *testing.T, args ...string) {
	t.Helper()
	home := filepath.Join(s.dir, "helm")
	env := []string{"HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home, s.helmPath, "--kubeconfig", s.direct, "--namespace", "kube-system"}
	a := command(t, "", "env", append(env, args...)...)
	if a.Code != 0 || strings.Contains(a.Errs, "arning") {
		t.Fatalf("helm %v: exit code %d\n%s%s", args, a.Code, a.Out, a.Errs)
	}
}

// has requires that every object exists that the chart renders with these values.
func (s *site) has(t *testing.T, values []string) {
	t.Helper()
	rendered := succeed(t, "", s.helmPath, append([]string{"template", "fairlead", chart, "--namespace", "kube-system", "--skip-tests"}, set(values)...)...)
	found := succeed(t, rendered, s.kubectl, "--kubeconfig", s.direct, "get", "-f", "-", "-o", "name")
	if want, got := len(objects(t, rendered)), strings.Count(found, "\n"); got != want || want < 15 {
		t.Errorf("%d objects of %d:\n%s", got, want, found)
	}
}

func (s *site) names(t *testing.T) string {
	t.Helper()
	return succeed(t, "", s.kubectl, "--kubeconfig", s.direct, "get", "--all-namespaces", "-o", "name", "daemonsets,deployments,replicasets,services,serviceaccounts,configmaps,secrets,"+
		"roles,rolebindings,clusterroles,clusterrolebindings,networkpolicies,poddisruptionbudgets,flowschemas,prioritylevelconfigurations,"+
		"validatingadmissionpolicies,validatingadmissionpolicybindings,servicemonitors,prometheusrules")
}

func (s *site) args(t *testing.T, kind string) string {
	t.Helper()
	return succeed(t, "", s.kubectl, "--kubeconfig", s.direct, "--namespace", "kube-system", "get", kind, "fairlead", "-o", "jsonpath={.spec.template.spec.containers[0].args}")
}

const operatorCRDs = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {plural: servicemonitors, singular: servicemonitor, kind: ServiceMonitor}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: prometheusrules.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {plural: prometheusrules, singular: prometheusrule, kind: PrometheusRule}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`
