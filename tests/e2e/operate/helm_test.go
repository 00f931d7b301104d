//go:build e2e

package operate

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// shape is a way to install Fairlead, with kustomize and with Helm.
type shape struct {
	name       string
	overlay    string
	components []string
	values     []string // for --set
}

func shapes() []shape {
	return []shape{
		{"control-plane", "control-plane", nil, nil},
		{"load-balancer", "load-balancer", nil, []string{"mode=load-balancer"}},
		{"managed", "managed", nil, []string{"mode=load-balancer", "localIdentity=impersonate"}},
		{"managed with monitoring", "managed", []string{"monitoring-own-ca"}, []string{"mode=load-balancer", "localIdentity=impersonate", "monitoring.enabled=true"}},
		{"behind", "behind", nil, []string{"mode=behind"}},
		{"behind with monitoring", "behind", []string{"monitoring-own-ca"}, []string{"mode=behind", "monitoring.enabled=true"}},
		{"control-plane with other ports", "control-plane", []string{"ports"}, []string{"ports.https=9443", "ports.admin=9444"}},
		{"control-plane with everything", "control-plane", []string{"entrypoint", "critical-apiservices", "write-status", "events", "policy", "audit", "monitoring"}, []string{"policy.enabled=true", "entrypoint.enabled=true", "criticalAPIServices={v1beta1.metrics.k8s.io}", "writeStatus=true", "emitEvents=true", "audit.enabled=true", "monitoring.enabled=true"}},
		{"load-balancer with everything", "load-balancer", []string{"critical-apiservices", "write-status", "events", "policy", "audit", "monitoring"}, []string{"mode=load-balancer", "policy.enabled=true", "criticalAPIServices={v1beta1.metrics.k8s.io}", "writeStatus=true", "emitEvents=true", "audit.enabled=true", "monitoring.enabled=true"}},
	}
}

func (w *world) compose(t *testing.T, s shape) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp(w.dir, "own-"))(t) //nolint:usetesting // beside what it names relatively
	own := "resources: [../deploy/overlays/" + s.overlay + "]\ncomponents: ["
	for _, c := range s.components {
		own += "../deploy/components/" + c + ", "
	}
	suite.Put(t, filepath.Join(dir, "kustomization.yaml"), own+"]\n")
	return succeed(t, "", w.kubectl, "kustomize", dir)
}

const chart = "../../../deploy/helm/fairlead"

// render returns the chart's objects, with arguments for helm template and values for --set.
func render(t *testing.T, values []string, args ...string) suite.Answer {
	t.Helper()
	args = append([]string{"template", "fairlead", chart, "--namespace", "kube-system"}, args...)
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return command(t, "", suite.Tool(t, "helm"), args...)
}

// testHelm requires a valid chart that renders the same as kustomize, and that kube-apiserver
// accepts. What Helm does with the objects is Helm's.
func testHelm(t *testing.T, w *world) {
	helm := suite.Tool(t, "helm")
	t.Run("lint", func(t *testing.T) { succeed(t, "", helm, "lint", "--strict", chart) })
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			rendered := render(t, s.values, "--skip-tests").Out
			want, got := substance(t, w.compose(t, s)), substance(t, rendered)
			check.Same(t, want, got, "kustomize (-) and Helm (+)")
			if len(got) < 13 || regexp.MustCompile(`image: fairlead\n`).MatchString(rendered) {
				t.Errorf("%d objects were rendered, want at least 13, or an image has no registry", len(got))
			}
			dryRun(t, w, rendered)
		})
	}
	t.Run("packaged", func(t *testing.T) {
		dir := t.TempDir()
		succeed(t, "", helm, "package", chart, "--destination", dir)
		packed := succeed(t, "", helm, "template", "fairlead", filepath.Join(dir, "fairlead-0.1.0.tgz"), "--namespace", "kube-system", "--set", "monitoring.enabled=true")
		check.Same(t, true, packed == render(t, []string{"monitoring.enabled=true"}).Out, "the archive renders differently: is a linked file missing?")
		bare := t.TempDir()
		succeed(t, "", "cp", "-r", chart+"/Chart.yaml", chart+"/values.yaml", chart+"/templates", bare)
		check.Has(t, command(t, "", helm, "template", "fairlead", bare, "--namespace", "kube-system").Errs, "Use the chart of a release")
	})
	t.Run("helm test", func(t *testing.T) { testHook(t, w) })
	t.Run("helm test by its own CA", func(t *testing.T) { // helm test has created its account
		dryRun(t, w, render(t, []string{"mode=load-balancer", "localIdentity=impersonate"}, "--show-only", "templates/tests/front-door.yaml").Out)
		dryRun(t, w, render(t, []string{"mode=behind"}, "--show-only", "templates/tests/front-door.yaml").Out)
	})
	t.Run("values", func(t *testing.T) { testValues(t, w) })
}

// testHook does what helm test does, but runs the pod's command here.
func testHook(t *testing.T, w *world) {
	rendered := render(t, []string{"test.serverName=kubernetes.default.svc"}, "--show-only", "templates/tests/front-door.yaml").Out
	before, pod, _ := strings.Cut(rendered, "kind: Pod")
	w.apply(t, strings.TrimSuffix(before, "apiVersion: v1\n"))
	dryRun(t, w, "apiVersion: v1\nkind: Pod"+pod)
	text := w.ask(t, "get configmap -n kube-system fairlead-test -o jsonpath={.data.kubeconfig}")
	token, config := filepath.Join(w.dir, "helm-token"), filepath.Join(w.dir, "helm-kubeconfig")
	suite.Put(t, token, suite.Token(t, w.core, "kube-system", "fairlead-test"))
	suite.Put(t, config, strings.NewReplacer("https://fairlead-admin.kube-system.svc:8443", w.front.Endpoint.URL,
		"/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", w.front.Endpoint.CAFile, "/var/run/secrets/kubernetes.io/serviceaccount/token", token).Replace(text))
	check.Has(t, pod, "command: [/usr/local/bin/kubectl-fairlead, explain, /version, --kubeconfig=/etc/fairlead-test/kubeconfig]")
	suite.Eventually(t, 15*time.Second, "passed", func() (bool, string) { // the authorizer caches refusals
		a := command(t, "", w.fairlead, "explain", "/version", "--kubeconfig="+config)
		return a.Code == 0 && strings.Contains(a.Out, "system:serviceaccount:kube-system:fairlead-test"), a.Out + a.Errs
	})
}

// testValues tries invalid values, each with one fault, and valid ones, which kube-apiserver must accept.
func testValues(t *testing.T, w *world) {
	for _, bad := range [][]string{
		{"mode=static"}, {"localIdentity=nobody", "mode=load-balancer"}, {"localIdentity=impersonate"}, {"modes=control-plane"}, {"image.tag=a b"}, {"image.digest=sha256:1"}, {"image.pullPolicy=Sometimes"}, {"replicas=0"}, {"replicas=two"}, {"replicas=2.5"},
		{"localAPIServers={http://10.0.0.1}"}, {"ports.https=0"}, {"ports.https=443"}, {"ports.admin=70000"}, {"ports.http=80"}, {"files.servingCert=tls.crt"}, {"files.cert=/tls.crt"},
		{"requestHeaderAllowedNames={}"}, {"pkiPath=pki"}, {"secrets.serving=Not_A_Name"}, {"trustConfigMap="}, {"shutdownDelay=15"}, {"goawayChance=0.5"}, {"loggingFormat=xml"}, {"extraArgs={serve}"},
		{"entrypoint.enabled=maybe"}, {"entrypoint=true"}, {"writeStatus=1"}, {"policy=true"}, {"policy.routes=none"}, {"caFromNamespaces={UP}"}, {"service.type=ExternalName"}, {"service.port=-1"},
		{"networkPolicy.enabled=no one"}, {"podDisruptionBudget.maxUnavailable=0"}, {"podDisruptionBudget.maxUnavailable=many"}, {"monitoring=true"}, {"nodeSelector=x"},
		{"terminationGracePeriodSeconds=2m"},
		{"mode=behind", "entrypoint.enabled=true"}, {"mode=load-balancer", "entrypoint.enabled=true"}, // a loop: Fairlead's own clients would reach Fairlead
	} {
		if a := render(t, bad, "--skip-tests"); a.Code == 0 || !strings.Contains(a.Errs, "schema") {
			t.Errorf("%v: exit code %d\n%s", bad, a.Code, a.Errs)
		}
	}
	for want, good := range map[string][]string{
		"image: registry.example.com/fairlead@sha256:" + strings.Repeat("a", 64): {"image.repository=registry.example.com/fairlead", "image.digest=sha256:" + strings.Repeat("a", 64)},
		"- --secure-port=7443":                                {"ports.https=7443"},
		"[fd00::1]:6443\n            - --secure-port=8443":    {"localAPIServers={https://[fd00::1]:6443}"},
		"- --tls-cert-file=/etc/kubernetes/pki/door.crt":      {"files.servingCert=/etc/kubernetes/pki/door.crt"},
		"- --local-apiserver=https://10.0.0.2:6443":           {"mode=load-balancer", "localAPIServers={https://10.0.0.1:6443,https://10.0.0.2:6443}", "entrypoint.enabled=true"},
		"- \"--goaway-chance=0.01\"":                          {"extraArgs={--goaway-chance=0.01}"},
		"  namespace: operate":                                {"caFromNamespaces={operate}"},
		"  type: ClusterIP":                                   {"mode=load-balancer", "service.type=ClusterIP"},
		"port: 8443, targetPort: https":                       {"mode=behind", "service.port=8443"},
		"- --client-ca-file=/etc/fairlead/trust/own-ca.crt":   {"mode=load-balancer", "localIdentity=impersonate", "files.clientCA=/etc/fairlead/trust/own-ca.crt"},
		"maxUnavailable: 50%":                                 {"mode=load-balancer", "podDisruptionBudget.maxUnavailable=50%"},
		"kubernetes.io/metadata.name: observability":          {"mode=load-balancer", "networkPolicy.monitoringNamespace=observability"},
		"- --requestheader-allowed-names=one,two":             {"requestHeaderAllowedNames={one,two}"},
		"- '--requestheader-allowed-names=O: a'":              {"requestHeaderAllowedNames={O: a}"},
		"hostPath: {path: /var/lib/pki/ca.crt, type: File}":   {"pkiPath=/var/lib/pki"},
		"startupProbe:\n            failureThreshold: 30":     {"startupProbe.failureThreshold=30", "startupProbe.httpGet.path=/livez", "startupProbe.httpGet.port=admin", "startupProbe.httpGet.scheme=HTTPS"},
		"nodeSelector:\n        zone: a\n":                    {"nodeSelector.zone=a"},
		"control-plane\n                operator: Exists":     {"affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null"},
		"terminationGracePeriodSeconds: 300":                  {"shutdownDelay=200s", "terminationGracePeriodSeconds=300"},
		"priorityClassName: system-cluster-critical":          {"priorityClassName=system-cluster-critical"},
		"topologyKey: topology.kubernetes.io/zone":            {"mode=load-balancer", "topologySpreadConstraints[0].maxSkew=1", "topologySpreadConstraints[0].topologyKey=topology.kubernetes.io/zone", "topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule"},
		"        team: platform":                              {"podLabels.team=platform"},
		"annotations:\n        team: platform":                {"podAnnotations.team=platform"},
		"- name: GOMEMLIMIT":                                  {"extraEnv[0].name=GOMEMLIMIT", "extraEnv[0].value=1GiB"},
		"mountPath: /own":                                     {"extraVolumes[0].name=own", "extraVolumes[0].configMap.name=own", "extraVolumeMounts[0].name=own", "extraVolumeMounts[0].mountPath=/own"},
		"level: RequestResponse":                              {"audit.enabled=true", "audit.policy.apiVersion=audit.k8s.io/v1", "audit.policy.kind=Policy", "audit.policy.rules[0].level=RequestResponse"},
		"    - apiService: v1.x.io\n      hidden: true\n":     {"policy.enabled=true", "policy.routes[0].apiService=v1.x.io", "policy.routes[0].hidden=true"},
		"    release: prometheus\n":                           {"monitoring.enabled=true", "monitoring.labels.release=prometheus"},
		"name: system:fairlead-namespaces}":                   {"policy.enabled=true", "policy.namespaceLabels=true"},
		"--advertise-address=$(POD_IP)":                       {"mode=load-balancer", "localAPIServers={https://10.0.0.1:6443}", "entrypoint.enabled=true"},
		"secret: {secretName: own-serving, defaultMode: 0440": {"mode=load-balancer", "secrets.serving=own-serving"},
	} {
		a := render(t, good, "--skip-tests")
		check.Same(t, 0, a.Code, "exit code with %v: %s", good, a.Errs)
		check.Has(t, a.Out, want)
		dryRun(t, w, a.Out)
	}
	// Names that would be numbers if they were not quoted.
	numbers := succeed(t, "", suite.Tool(t, "helm"), "template", "2026", chart, "--namespace", "kube-system", "--skip-tests", "--set", "mode=load-balancer", "--set-string", "networkPolicy.monitoringNamespace=1e3,secrets.serving=1,secrets.frontProxyClient=2,trustConfigMap=3,priorityClassName=4")
	dryRun(t, w, numbers)
	w.alone.Lock() // the ConfigMap is that of testComponents, too
	defer w.alone.Unlock()
	w.apply(t, ruled)
	w.ask(t, "annotate -n kube-system configmap fairlead-policy meta.helm.sh/release-name=fairlead")
	ended := render(t, []string{"policy.enabled=true"}, "--skip-tests", "--is-upgrade", "--dry-run=server", "--kubeconfig="+w.direct)
	w.ask(t, "annotate -n kube-system configmap fairlead-policy meta.helm.sh/release-name-")
	check.Same(t, 0, ended.Code, "exit code without values: %s", ended.Errs)
	check.Has(t, ended.Out, "    routes: []\n    rules: []\n") // the policy that Helm has made ends
	if a := render(t, nil, "--namespace", "elsewhere"); a.Code == 0 || !strings.Contains(a.Errs, "kube-system") {
		t.Errorf("another namespace: exit code %d\n%s", a.Code, a.Errs)
	}
}

func objects(t *testing.T, rendered string) []*unstructured.Unstructured {
	t.Helper()
	var list []*unstructured.Unstructured
	for document := range strings.SplitSeq("\n"+rendered, "\n---") {
		o := &unstructured.Unstructured{}
		must.Do(t, yaml.Unmarshal([]byte(document), &o.Object))
		if len(o.Object) > 0 {
			list = append(list, o)
		}
	}
	return list
}

// substance returns objects by kind and name, without their own labels and annotations, which depend on the renderer.
func substance(t *testing.T, rendered string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, o := range objects(t, rendered) {
		o.SetLabels(nil)
		o.SetAnnotations(nil)
		key := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
		check.Same(t, true, all[key] == nil, "%s is rendered twice", key)
		all[key] = o.Object
	}
	return all
}

// dryRun sends manifests to a real kube-apiserver, which must accept every object without a
// warning. It leaves out the objects whose kinds need CRDs.
func dryRun(t *testing.T, w *world, rendered string) {
	t.Helper()
	var documents []string
	for _, o := range objects(t, rendered) {
		if o.GroupVersionKind().Group != "monitoring.coreos.com" {
			documents = append(documents, string(must.Get(yaml.Marshal(o.Object))(t)))
		}
	}
	a := command(t, strings.Join(documents, "---\n"), w.kubectl, "--kubeconfig", w.direct, "apply", "--dry-run=server", "-f", "-")
	lines := slices.DeleteFunc(strings.Split(a.Errs, "\n"), func(line string) bool {
		// Objects of Helm and kustomize share this cluster, so this warning is not a fault.
		return line == "" || strings.Contains(line, "kubectl.kubernetes.io/last-applied-configuration")
	})
	if n := strings.Count(a.Out, "server dry run"); a.Code != 0 || n == 0 || n != len(documents) || len(lines) > 0 {
		t.Errorf("exit code %d, %d objects:\n%s%s", a.Code, len(documents), a.Out, strings.Join(lines, "\n"))
	}
}
