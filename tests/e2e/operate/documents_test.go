//go:build e2e

package operate

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

func read(t *testing.T, file string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(file))(t))
}

// copyDeploy copies deploy to a folder, without the chart, whose links would lead out of it.
func copyDeploy(t *testing.T, dir string) {
	t.Helper()
	succeed(t, "", "cp", "-r", "../../../deploy", dir)
	must.Do(t, os.RemoveAll(filepath.Join(dir, "deploy/helm")))
}

// testDocuments runs the commands of docs/operations.md that need no nodes, and parses the rest.
func testDocuments(t *testing.T, w *world) {
	blocks := blocksOf(read(t, "../../../docs/operations.md"))
	dir := t.TempDir()
	copyDeploy(t, dir)
	for name, leaf := range map[string]pki.Leaf{"serving": {CommonName: "fairlead", Names: []string{"localhost"}}, "front-proxy-client": {CommonName: "front-proxy-client"}} {
		must.Get2(w.ca.Issue(leaf).WriteFiles(dir, name))(t)
	}
	for _, name := range []string{"client-ca.crt", "requestheader-ca.crt"} {
		suite.Put(t, filepath.Join(dir, name), w.ca.PEM())
	}
	must.Do(t, os.Symlink(w.kubectl, filepath.Join(dir, "kubectl")))
	ran := 0
	w.alone.Lock() // one block removes the statuses that a Fairlead writes
	defer w.alone.Unlock()
	for _, b := range blocks {
		line := []string{"-euo", "pipefail", "-c", b.text}
		if b.kind == "sh" {
			ran++
		} else { // a command that needs a node must at least parse
			line = []string{"-n", "-c", regexp.MustCompile(`<\w+>`).ReplaceAllString(b.text, "x")}
		}
		a := w.bash(t, dir, w.direct, line...)
		check.Same(t, 0, a.Code, "exit code of %s\n%s%s", b.text, a.Out, a.Errs)
	}
	check.Same(t, true, ran >= 8 && len(blocks) >= 15, "%d blocks, of which %d were run", len(blocks), ran)
	t.Run("flags", func(t *testing.T) { testDocumentedFlags(t, w) })
	t.Run("names", testNames)
	t.Run("shells", testShells)
}

// block is a fenced block of a document.
type block struct{ kind, text string }

func blocksOf(text string) (blocks []block) {
	for _, b := range regexp.MustCompile("(?ms)^ *```(\\w+)\n(.*?)^ *```$").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, block{b[1], b[2]})
	}
	return blocks
}

// bash runs a command of a document in a folder, which has the programs.
func (w *world) bash(t *testing.T, dir, kubeconfig string, line ...string) suite.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", line...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+dir+":"+os.Getenv("PATH"))
	return suite.Run(t, cmd, "")
}

func runbooks(t *testing.T) []string {
	t.Helper()
	return must.Get(filepath.Glob("../../../docs/runbooks/*.md"))(t)
}

// testDocumentedFlags requires that every flag in the operators' pages exists.
func testDocumentedFlags(t *testing.T, w *world) {
	known := succeed(t, "", filepath.Join(filepath.Dir(w.fairlead), "kubectl-fairlead"), "init", "--help")
	for _, subcommand := range []string{"serve", "lint", "status", "top", "explain"} {
		known += succeed(t, "", w.fairlead, subcommand, "--help")
	}
	others := []string{ // of kubectl, kubeadm, Helm, kube-apiserver and cosign
		"--insecure-ignore-tlog", "--bundle", "--certificate-oidc-issuer", "--certificate-identity-regexp",
		"--apiserver-cert-extra-sans", "--client-name", "--config", "--validity-period", "--dry-run", "--cert", "--key", "--from-file", "--namespace", "--install", "--set", "--reset-then-reuse-values",
		"--clusterrole", "--serviceaccount", "--group", "--endpoint-reconciler-type", "--show-managed-fields", "--server", "--raw", "--overwrite", "--manifest", "--archive", "--now", "--version",
		"--as", "--admin", "--server-side", "--node-ip", "--control-plane", "--certificate-authority", "--current", "--cluster", "--requestheader",
		"--tail", "--prefix", "--bump-revision", "--mark-compacted", "--subresource", "--type", "--cascade", "--ignore-not-found",
	}
	n := 0
	for _, page := range append(runbooks(t), "../../../docs/operations.md", "../../../docs/scaling.md", "../../../docs/managed.md") {
		for _, flag := range regexp.MustCompile(`--[a-z][a-z0-9-]+`).FindAllString(read(t, page), -1) {
			n++
			ours := regexp.MustCompile(regexp.QuoteMeta(flag) + `\b[^-]`).MatchString(known)
			check.Same(t, true, ours || slices.Contains(others, flag), "%s: no program has %s", filepath.Base(page), flag)
		}
	}
	check.Same(t, true, n >= 40, "%d flags were found, want at least 40", n)
}

// spans returns what a page has in backquotes, without its blocks, whose fences are backquotes too.
func spans(t *testing.T, page string) (list []string) {
	t.Helper()
	text := regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(read(t, page), "")
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

// testNames requires that pages, dashboards and rules name only existing metrics, annotations and
// folders, and that Prometheus parses their queries. `make dashboards` checks the dashboards by
// Grafana's own types.
func testNames(t *testing.T) {
	r, queries := shippedRules(t), map[string][]string{}
	for _, g := range r.Groups {
		for _, one := range g.Rules {
			queries[one.Alert+one.Record] = append(queries[one.Alert+one.Record], one.Expr)
		}
	}
	metrics, annotations := read(t, "../../../docs/metrics.md"), read(t, "../../../docs/annotations.md")
	listed := func(name string) bool {
		return strings.Contains(metrics, "`"+name+"`") || strings.Contains(metrics, "`"+name+"{")
	}
	uses := func(where, text string) (n int) {
		for _, m := range regexp.MustCompile(`\b(fairlead|aggregator)[_:][a-z0-9_:]+|\b(up|process_[a-z_]+|go_[a-z_]+)\b`).FindAllString(text, -1) {
			n++
			base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(m, "")
			ours := strings.HasPrefix(m, "fairlead") || strings.HasPrefix(m, "aggregator")
			if ours && queries[m] == nil && !listed(base) && !listed(m) {
				t.Errorf("%s uses %s, which is not in docs/metrics.md", where, m)
			}
		}
		return n
	}
	seen, others := 0, []string{ // of Endpoints and of audit events
		"fairlead.dev/published", "fairlead.dev/apiservice", "fairlead.dev/rule", "fairlead.dev/dry-run-rule",
		"fairlead.dev/request-body", "fairlead.dev/response-body",
	}
	for _, page := range append(runbooks(t), "../../../docs/operations.md", "../../../docs/records.md", "../../../docs/scaling.md") {
		where := filepath.Base(page)
		for _, span := range spans(t, page) {
			for _, name := range regexp.MustCompile(`\b(fairlead|aggregator)_[a-z0-9_]+\b`).FindAllString(span, -1) {
				seen += uses(where, name)
			}
			if name := regexp.MustCompile(`^fairlead\.dev/[a-z0-9-]+`).FindString(span); name != "" && !slices.Contains(others, name) {
				seen++
				check.Same(t, true, strings.Contains(annotations, "| `"+strings.TrimPrefix(name, "fairlead.dev/")+"` |"), "%s: there is no annotation %s", where, name)
			}
			if regexp.MustCompile(`^(up|sum|rate|increase|max|histogram_quantile)\b.*[({]`).MatchString(span) {
				queries[where] = append(queries[where], span)
			}
			if name := regexp.MustCompile(`^fairlead_[a-z0-9_]+[{]`).FindString(span); name != "" &&
				regexp.MustCompile("`"+regexp.QuoteMeta(name)+"[^`]*` [(]histogram[)]").MatchString(metrics) {
				t.Errorf("%s: %s is a histogram, of which no series has that name", where, span)
			}
			if path := regexp.MustCompile(`^deploy/[\w/.-]+$`).FindString(span); path != "" && path != "deploy/own" {
				seen++
				must.Get(os.Stat(filepath.Join("../../..", path)))(t)
			}
		}
	}
	pages := 0
	for _, file := range must.Get(filepath.Glob("../../../deploy/components/monitoring/*.json"))(t) {
		pages++
		queries[filepath.Base(file)] = panels(t, file)
	}
	var all []map[string]string
	for where, list := range queries {
		for _, q := range list {
			check.Same(t, true, uses(where, q) != 0, "%s uses no metric: %s", where, q)
			all = append(all, map[string]string{"record": fmt.Sprintf("query:%d", len(all)), "expr": q})
		}
	}
	if seen < 20 || pages != 3 || len(all) < 100 {
		t.Errorf("%d names, %d dashboards and %d queries were found", seen, pages, len(all))
	}
	file := filepath.Join(t.TempDir(), "queries.yaml")
	suite.Put(t, file, must.Get(yaml.Marshal(map[string]any{"groups": []map[string]any{{"name": "all", "rules": all}}}))(t))
	succeed(t, "", "promtool", "check", "rules", file)
}

// panels returns the queries of a dashboard, with values for its variables.
func panels(t *testing.T, file string) (queries []string) {
	t.Helper()
	name := filepath.Base(file)
	var d struct {
		UID        string
		Templating struct{ List []struct{ Name string } }
		Panels     []struct{ Targets []struct{ Expr string } }
	}
	must.Do(t, json.Unmarshal([]byte(read(t, file)), &d))
	check.Same(t, strings.TrimSuffix(name, ".json"), d.UID, "uid of %s", name)
	check.Has(t, read(t, filepath.Dir(file)+"/kustomization.yaml"), name)
	values := []string{"$__rate_interval", "5m"}
	for _, v := range d.Templating.List {
		values = append(values, "$"+v.Name, "x")
	}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			expr := strings.NewReplacer(values...).Replace(q.Expr)
			check.Same(t, false, strings.Contains(expr, "$"), "%s: unknown variable: %s", name, expr)
			queries = append(queries, expr)
		}
	}
	return queries
}

// rules are the shipped alerts and recording rules.
type rules struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Alert       string            `json:"alert,omitempty"`
	Record      string            `json:"record,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func shippedRules(t *testing.T) *rules {
	t.Helper()
	var object struct{ Spec rules }
	must.Do(t, yaml.Unmarshal([]byte(read(t, "../../../deploy/components/monitoring/prometheusrule.yaml")), &object))
	return &object.Spec
}

// alerts returns the alerts' names, each once: some have a rule for each severity.
func (r *rules) alerts() (names []string) {
	for _, g := range r.Groups {
		for _, one := range g.Rules {
			if one.Alert != "" && !slices.Contains(names, one.Alert) {
				names = append(names, one.Alert)
			}
		}
	}
	return names
}

// patient has objects that the commands of the runbooks refer to. Others are the APIService's
// Service and Fairlead's DaemonSet. The APIService takes its server's CA and port.
const patient = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.patient.example.com}
spec: {group: patient.example.com, version: v1, groupPriorityMinimum: 1000, versionPriority: 100, caBundle: %s,
  service: {namespace: operate, name: patient, port: %d}}
---
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

// testRunbooks runs every command of the runbooks, with the patient's names for the placeholders.
// testNames checks the other names in them.
func testRunbooks(t *testing.T, w *world) {
	objects := fmt.Sprintf(patient, base64.StdEncoding.EncodeToString(w.ca.PEM()), w.serve(t, "patient", nil).Port())
	w.apply(t, w.kustomize(t, "overlays/control-plane"))
	w.apply(t, objects)
	must.Do(t, os.Symlink(w.kubectl, filepath.Join(w.dir, "kubectl"))) // beside fairlead
	gaps := strings.NewReplacer(
		"<apiservice>", "v1.patient.example.com", "<name>", "v1.patient.example.com", "<namespace>", "operate", "<service>", "patient", "<pod>", "patient",
		"<group>", "patient.example.com", "<version>", "v1", "<message>", "moving house", "<user>", "jane",
		"https://<kube-apiserver>:6443", w.Cluster.Endpoint().URL, "https://<address>:8444", w.front.Admin.URL, "<address>", "patient",
		"<file>", w.PKI.Admin.CertFile, "<key>", w.PKI.Admin.KeyFile,
		" -w", "", // or it would never exit
	)
	alerts := shippedRules(t).alerts()
	check.Same(t, len(alerts), len(runbooks(t)), "runbooks, as many as alerts")
	ran := 0
	for _, alert := range alerts {
		t.Run(alert, func(t *testing.T) {
			page := "../../../docs/runbooks/" + alert + ".md"
			objects := objects
			if strings.Contains(read(t, page), "endpoints kubernetes") { // they need Endpoints that nothing else writes
				w.alone.Lock()
				defer w.alone.Unlock()
				defer w.clear(t)
				objects += "{apiVersion: v1, kind: Endpoints, metadata: {namespace: default, name: kubernetes}}"
			}
			for _, typed := range spans(t, page) {
				name, _, _ := strings.Cut(typed, " ")
				if slices.Contains([]string{"kubectl", "fairlead", "curl", "openssl"}, name) {
					ran++
					w.apply(t, objects) // an earlier command may have deleted them
					w.typed(t, gaps.Replace(typed))
				}
			}
		})
	}
	check.Same(t, true, ran >= 20, "%d commands were run, want at least 20", ran)
}

// typed runs a command of a page. It may exit with 3: an APIService is down.
func (w *world) typed(t *testing.T, line string) {
	t.Helper()
	a := w.bash(t, w.dir, w.admin, "-euo", "pipefail", "-c", line)
	down := a.Code == 3 && strings.HasPrefix(line, "fairlead ")
	if a.Code != 0 && !down || strings.Contains(line, "curl") && !strings.Contains(a.Out+a.Errs, "check passed") {
		t.Errorf("%s: exit code %d\n%s%s", line, a.Code, a.Out, a.Errs)
	}
}
