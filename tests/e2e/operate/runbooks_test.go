//go:build e2e

package operate

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

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
	if pages := runbooks(t); len(pages) != len(alerts) {
		t.Errorf("%d runbooks for %d alerts", len(pages), len(alerts))
	}
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
	if ran < 20 {
		t.Errorf("%d commands were run, want at least 20", ran)
	}
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
