//go:build e2e

package operate

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// patient has objects that the commands of the runbooks refer to. Others are an APIService with its
// Service and Fairlead's DaemonSet.
const patient = `
{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: operate, name: default}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: operate, name: patient}, spec: {containers: [{name: server, image: none}]}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: certificates.cert-manager.io}
spec:
  group: cert-manager.io
  names: {plural: certificates, singular: certificate, kind: Certificate}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
`

// testRunbooks runs every command of the runbooks, with the patient's names for the placeholders,
// and checks the other names in them.
func testRunbooks(t *testing.T, w *world) {
	s := w.serve(t, "patient", nil)
	_, port, _ := strings.Cut(s.Addr(), ":")
	w.apply(t, w.kustomize(t, "overlays/control-plane"))
	w.apply(t, patient)
	dir := t.TempDir()
	for name, path := range map[string]string{"kubectl": w.kubectl, "fairlead": w.fairlead} {
		must.Do(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	gaps := strings.NewReplacer(
		"<apiservice>", "v1.patient.example.com", "<name>", "v1.patient.example.com", "<namespace>", "operate", "<service>", "patient", "<pod>", "patient",
		"<group>", "patient.example.com", "<version>", "v1", "<message>", "moving house",
		"https://<kube-apiserver>:6443", w.Cluster.Endpoint().URL, "https://<address>:8444", w.front.Admin.URL, "<address>", "patient",
		"<file>", w.PKI.Admin.CertFile, "<key>", w.PKI.Admin.KeyFile,
		" -w", "", // or it would never exit
	)
	pages := must.Get(filepath.Glob("../../docs/runbooks/*.md"))(t)
	if alerts := shippedRules(t).alerts(); len(pages) != len(alerts) {
		t.Errorf("%d runbooks for %d alerts", len(pages), len(alerts))
	}
	ran := 0
	for _, page := range pages {
		t.Run(strings.TrimSuffix(filepath.Base(page), ".md"), func(t *testing.T) {
			for _, typed := range spans(t, page) {
				if name, _, _ := strings.Cut(typed, " "); name != "kubectl" && name != "fairlead" && name != "curl" && name != "openssl" {
					continue
				}
				ran++
				// An earlier command may have deleted them.
				w.apply(t, w.apiService("patient", port, "")+patient)
				if strings.Contains(typed, "endpoints kubernetes") {
					w.withEndpoints(t, func() { w.typed(t, dir, typed) })
					continue
				}
				w.typed(t, dir, gaps.Replace(typed))
			}
		})
	}
	if ran < 20 {
		t.Errorf("%d commands were run, want at least 20", ran)
	}
	t.Run("names", func(t *testing.T) { testNames(t, pages) })
}

// typed runs a command of a page. It may exit with 3: an APIService is down.
func (w *world) typed(t *testing.T, dir, line string) {
	t.Helper()
	a := w.bash(t, dir, w.admin, "-euo", "pipefail", "-c", line)
	down := a.Code == 3 && strings.HasPrefix(line, "fairlead ")
	if a.Code != 0 && !down || strings.Contains(line, "curl") && !strings.Contains(a.Out+a.Errs, "check passed") {
		t.Errorf("%s: exit code %d\n%s%s", line, a.Code, a.Out, a.Errs)
	}
}

// withEndpoints calls do while default/kubernetes has Endpoints that nothing else writes.
func (w *world) withEndpoints(t *testing.T, do func()) {
	t.Helper()
	w.alone.Lock()
	defer w.alone.Unlock()
	w.apply(t, "{apiVersion: v1, kind: Endpoints, metadata: {namespace: default, name: kubernetes}}")
	do()
	w.clear(t)
}

func spans(t *testing.T, page string) []string {
	t.Helper()
	data := must.Get(os.ReadFile(page))(t)
	var list []string
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(data), -1) {
		list = append(list, m[1])
	}
	return list
}

// testNames checks that the annotations, metrics and folders in the documents exist, and that the
// queries are valid.
func testNames(t *testing.T, pages []string) {
	metrics := must.Get(os.ReadFile("../../docs/metrics.md"))(t)
	others := map[string]bool{"fairlead.dev/published": true} // of Endpoints
	var queries []string
	seen := 0
	for _, page := range append(pages, "../../docs/operations.md", "../../docs/records.md", "../../docs/scaling.md") {
		for _, span := range spans(t, page) {
			if name := regexp.MustCompile(`^fairlead\.dev/[a-z0-9-]+`).FindString(span); name != "" && !others[name] {
				seen++
				object := &apiregistrationv1.APIService{Spec: apiregistrationv1.APIServiceSpec{Group: "x.example.com", Version: "v1", Service: &apiregistrationv1.ServiceReference{Namespace: "a", Name: "b"}}}
				object.Name, object.Annotations = "v1.x.example.com", map[string]string{name: "\x00"}
				in := registry.Input{APIServices: map[string]*apiregistrationv1.APIService{object.Name: object}, Complete: true}
				for _, e := range registry.Build(in, nil).Entries() {
					if strings.Contains(fmt.Sprint(e.Problems), "unknown name") {
						t.Errorf("%s: there is no annotation %s", filepath.Base(page), name)
					}
				}
			}
			for _, name := range regexp.MustCompile(`\b(fairlead|aggregator)_[a-z0-9_]+\b`).FindAllString(span, -1) {
				if seen++; !strings.Contains(string(metrics), "`"+name+"`") {
					t.Errorf("%s: there is no metric %s", filepath.Base(page), name)
				}
			}
			if regexp.MustCompile(`^(up|sum|rate|increase|max|histogram_quantile)\b.*[({]`).MatchString(span) {
				queries = append(queries, span)
			}
			if path := regexp.MustCompile(`^deploy/[\w/.-]+$`).FindString(span); path != "" {
				seen++
				if _, err := os.Stat(filepath.Join("../..", path)); err != nil && path != "deploy/own" {
					t.Errorf("%s: %v", filepath.Base(page), err)
				}
			}
		}
	}
	if seen < 20 || len(queries) < 3 {
		t.Errorf("%d names and %d queries were found", seen, len(queries))
	}
	testQueries(t, queries)
}

// testQueries checks PromQL queries with promtool.
func testQueries(t *testing.T, queries []string) {
	var rules []map[string]string
	for i, q := range queries {
		rules = append(rules, map[string]string{"record": fmt.Sprintf("runbook:%d", i), "expr": q})
	}
	data := must.Get(yaml.Marshal(map[string]any{"groups": []map[string]any{{"name": "runbooks", "rules": rules}}}))(t)
	file := filepath.Join(t.TempDir(), "queries.yaml")
	must.Do(t, os.WriteFile(file, data, 0o600))
	succeed(t, "", "promtool", "check", "rules", file)
}
