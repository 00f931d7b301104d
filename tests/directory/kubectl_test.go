//go:build e2e

package directory

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testKubectl does what an author of two extension servers does with a directory.
func testKubectl(t *testing.T, w *world) {
	registry := t.TempDir()
	one, two := w.extension(t, "widgets.example.com/v1"), w.extension(t, "gadgets.example.com/v1")
	suite.Put(t, filepath.Join(registry, "one.yaml"), apiOf(one, "widgets.example.com", "v1", "one"))
	suite.Put(t, filepath.Join(registry, "two.yaml"), apiOf(two, "gadgets.example.com", "v1", "two"))
	d := w.open(t, registry)
	k := d.as(t, w.user(t, "root", "system:masters"))
	suite.Eventually(t, 30*time.Second, "both available", func() (bool, string) {
		out, errs, _ := k.try(t, "get", "apiservices")
		return strings.Count(out, "True") == 2, out + errs
	})
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"get apiservices", []string{"get", "apiservices"}, []string{"NAME", "SERVICE", "AVAILABLE", "AGE", "v1.widgets.example.com", "apps/one", "v1.gadgets.example.com", "apps/two"}},
		{"get one", []string{"get", "apiservice", "v1.widgets.example.com", "-o", "jsonpath={.status.conditions[0].reason} {.spec.service.port}"}, []string{"Passed 443"}},
		{"describe", []string{"describe", "apiservice", "v1.widgets.example.com"}, []string{"all checks passed", "Group Priority Minimum", "API Version:  apiregistration.k8s.io/v1"}},
		{"explain", []string{"explain", "apiservice"}, []string{"KIND:       APIService", "spec"}},
		{"explain a field", []string{"explain", "apiservice.spec.groupPriorityMinimum"}, []string{"groupPriorityMinimum", "integer"}},
		{"selectors", []string{"get", "apiservices", "--field-selector", "metadata.name=v1.gadgets.example.com", "--no-headers"}, []string{"v1.gadgets.example.com"}},
		{"chunks", []string{"get", "apiservices", "--chunk-size=1", "-o", "name"}, []string{"v1.widgets.example.com", "v1.gadgets.example.com"}},
		{"api-resources", []string{"api-resources"}, []string{"widgets", "apiregistration.k8s.io/v1", "gadgets.example.com/v1"}},
		{"api-versions", []string{"api-versions"}, []string{"apiregistration.k8s.io/v1", "widgets.example.com/v1", "gadgets.example.com/v1"}},
		{"get widgets", []string{"get", "widgets.widgets.example.com", "-n", "default", "-o", "name"}, []string{"widget.widgets.example.com/"}},
		{"get of the other group", []string{"get", "widgets.gadgets.example.com", "-n", "default", "-o", "name"}, []string{"widget.gadgets.example.com/"}},
		{"version", []string{"version"}, []string{"Server Version: v1."}},
		{"raw version", []string{"get", "--raw", "/version"}, []string{`"gitVersion"`}},
		{"raw api", []string{"get", "--raw", "/api"}, []string{`"APIVersions"`}},
		{"raw livez", []string{"get", "--raw", "/livez"}, []string{"ok"}},
		{"raw readyz", []string{"get", "--raw", "/readyz?verbose"}, []string{"[+]table ok"}},
	} {
		t.Run(tc.name, func(t *testing.T) { k.run(t, tc.args, tc.want...) })
	}
	for _, tc := range []struct{ name, path string }{{"unknown path", "/nothing"}, {"unknown group", "/apis/none.example.com/v1/things"}, {"core", "/api/v1/namespaces"}} {
		t.Run(tc.name, func(t *testing.T) {
			if status, body := d.ask(t, d.root, tc.path); status != http.StatusNotFound || !strings.Contains(body, `"kind":"Status"`) {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	t.Run("writes", func(t *testing.T) {
		_, errs, code := k.try(t, "delete", "apiservice", "v1.widgets.example.com")
		if code == 0 || !strings.Contains(errs, "MethodNotAllowed") || !strings.Contains(errs, "change the manifest") {
			t.Errorf("exit code %d: %s", code, errs)
		}
	})
	t.Run("watch follows the files", func(t *testing.T) { testWatch(t, k, registry) })
	t.Run("a stopped server", func(t *testing.T) {
		two.Close()
		suite.Eventually(t, 30*time.Second, "unavailable", func() (bool, string) {
			out, _, _ := k.try(t, "get", "apiservice", "v1.gadgets.example.com", "--no-headers")
			return strings.Contains(out, "False (FailedDiscoveryCheck)"), out
		})
		if status, body := d.ask(t, d.root, "/apis/gadgets.example.com/v1/widgets"); status != http.StatusServiceUnavailable || !strings.Contains(body, "gadgets.example.com") {
			t.Errorf("%d %s", status, body)
		}
		k.run(t, []string{"get", "widgets.widgets.example.com", "-A", "-o", "name"}, "widget.widgets.example.com/")
	})
}

// testWatch runs kubectl get --watch while files appear, change and disappear.
func testWatch(t *testing.T, k kubectl, registry string) {
	seen := &logbook.Book{}
	cmd := k.command(t.Context(), "get", "apiservices", "--watch", "--output-watch-events", "-o", "custom-columns=E:.type,N:.object.metadata.name,P:.object.spec.versionPriority", "--no-headers")
	cmd.Stdout = seen
	must.Do(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	sees := func(kind, priority string) {
		t.Helper()
		suite.Eventually(t, 10*time.Second, kind, func() (bool, string) {
			for text := range strings.Lines(seen.String()) {
				if f := strings.Fields(text); len(f) == 3 && f[0] == kind && f[1] == "v1.late.example.com" && f[2] == priority {
					return true, ""
				}
			}
			return false, seen.String()
		})
	}
	suite.Eventually(t, 10*time.Second, "watching", func() (bool, string) { return strings.Count(seen.String(), "ADDED") >= 2, seen.String() })
	late := api("late.example.com", "v1", "late", "127.0.0.1:1", "")
	late = strings.Replace(late, "  caBundle: \n", "", 1)
	suite.Put(t, filepath.Join(registry, "late.yaml"), late)
	sees("ADDED", "100")
	suite.Put(t, filepath.Join(registry, "late.yaml"), strings.Replace(late, "versionPriority: 100", "versionPriority: 7", 1))
	sees("MODIFIED", "7")
	must.Do(t, os.Remove(filepath.Join(registry, "late.yaml")))
	sees("DELETED", "7")
}
