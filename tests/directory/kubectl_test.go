//go:build e2e

package directory

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/logbook"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// as returns kubectl for a user of an endpoint.
func (w *world) as(t *testing.T, e cluster.Endpoint, cr cluster.Credentials) kubectl {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	must.Do(t, e.WriteKubeconfig(file, cr))
	return kubectl{w.kubectl, []string{"--kubeconfig", file, "--cache-dir", filepath.Join(dir, "cache")}}
}

// kubectl runs kubectl as one user.
type kubectl struct {
	path string
	args []string
}

func (k kubectl) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, k.path, append(slices.Clip(k.args), args...)...)
}

// try runs kubectl and returns standard output, standard error and exit code.
func (k kubectl) try(t *testing.T, args ...string) (string, string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a := suite.Run(t, k.command(ctx, args...), "")
	return a.Out, a.Errs, a.Code
}

// run runs kubectl, which must succeed and print all texts of want.
func (k kubectl) run(t *testing.T, args []string, want ...string) string {
	t.Helper()
	out, errs, code := k.try(t, args...)
	if code != 0 {
		t.Fatalf("kubectl %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	for _, s := range want {
		if !strings.Contains(out, s) {
			t.Errorf("kubectl %s: %q is missing in\n%s", strings.Join(args, " "), s, out)
		}
	}
	return out
}

// testKubectl does what an author of two extension servers does with a directory.
func testKubectl(t *testing.T, w *world) {
	registry := t.TempDir()
	one, two := w.extension(t, "widgets.example.com/v1"), w.extension(t, "gadgets.example.com/v1")
	suite.Put(t, filepath.Join(registry, "one.yaml"), apiOf(one, "widgets.example.com", "v1", "one"))
	suite.Put(t, filepath.Join(registry, "two.yaml"), apiOf(two, "gadgets.example.com", "v1", "two"))
	d := w.open(t, registry)
	k := w.as(t, d.front, w.user(t, "root", "system:masters"))
	suite.Eventually(t, 30*time.Second, "both available", func() (bool, string) {
		out, errs, _ := k.try(t, "get", "apiservices")
		return strings.Count(out, "True") == 2, out + errs
	})
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"get apiservices", []string{"NAME", "SERVICE", "AVAILABLE", "AGE", "v1.widgets.example.com", "apps/one", "v1.gadgets.example.com", "apps/two"}},
		{"describe apiservice v1.widgets.example.com", []string{"all checks passed", "Group Priority Minimum", "API Version:  apiregistration.k8s.io/v1"}},
		{"explain apiservice.spec.groupPriorityMinimum", []string{"groupPriorityMinimum", "integer"}},
		{"get apiservices --chunk-size=1 -o name", []string{"v1.widgets.example.com", "v1.gadgets.example.com"}},
		{"api-resources", []string{"widgets", "apiregistration.k8s.io/v1", "gadgets.example.com/v1"}},
		{"api-versions", []string{"apiregistration.k8s.io/v1", "widgets.example.com/v1", "gadgets.example.com/v1"}},
		{"get widgets.widgets.example.com -n default -o name", []string{"widget.widgets.example.com/"}},
		{"get widgets.gadgets.example.com -n default -o name", []string{"widget.gadgets.example.com/"}},
		{"version", []string{"Server Version: v1."}},
		{"get --raw /api", []string{`"APIVersions"`}},
		{"get --raw /readyz?verbose", []string{"[+]table ok"}},
	} {
		t.Run(strings.ReplaceAll(tc.args, "/", " "), func(t *testing.T) { k.run(t, strings.Fields(tc.args), tc.want...) })
	}
	t.Run("no writes, no core", func(t *testing.T) {
		if _, errs, code := k.try(t, "delete", "apiservice", "v1.widgets.example.com"); code == 0 || !strings.Contains(errs, "change the manifest") {
			t.Errorf("exit code %d: %s", code, errs)
		}
		if status, body := d.ask(t, d.root, "/api/v1/namespaces"); status != http.StatusNotFound || !strings.Contains(body, `"kind":"Status"`) {
			t.Errorf("%d %s", status, body)
		}
	})
	t.Run("watch follows the files", func(t *testing.T) { testWatch(t, k, registry) })
	t.Run("a bad file", func(t *testing.T) {
		bad := filepath.Join(registry, "one.yaml")
		suite.Put(t, bad, "kind: [\n")
		suite.Eventually(t, 10*time.Second, "counted", func() (bool, string) {
			_, body := alone.Get(t, d.root, "https://"+d.Admin+"/metrics")
			return strings.Contains(body, fmt.Sprintf("fairlead_registry_file_problems{file=%q}", bad)) && strings.Contains(d.Log.String(), bad+"\""), body
		})
		d.status(t, d.root, widgets, http.StatusOK)
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
	late := strings.Replace(api("late.example.com", "v1", "late", "127.0.0.1:1", ""), "  caBundle: \n", "", 1)
	suite.Put(t, filepath.Join(registry, "late.yaml"), late)
	sees("ADDED", "100")
	suite.Put(t, filepath.Join(registry, "late.yaml"), strings.Replace(late, "versionPriority: 100", "versionPriority: 7", 1))
	sees("MODIFIED", "7")
	must.Do(t, os.Remove(filepath.Join(registry, "late.yaml")))
	sees("DELETED", "7")
}

// rounds is how often a failed measurement is repeated: the limits are the product's, and the
// machine may be busy.
const rounds = 3

// testSpeed measures how soon clients notice a renamed file among a thousand.
func testSpeed(t *testing.T, w *world) {
	registry := t.TempDir()
	good := apiOf(w.extension(t, "widgets.example.com/v1"), "widgets.example.com", "v1", "one")
	suite.Put(t, filepath.Join(registry, "widgets.yaml"), good)
	for i := range 999 {
		// Without an EndpointSlice there are no probes: only reading is measured.
		text, _, _ := strings.Cut(api(fmt.Sprintf("g%03d.example.com", i), "v1", "one", "127.0.0.1:1", "eA=="), "---\n")
		suite.Put(t, filepath.Join(registry, fmt.Sprintf("g%03d.yaml", i)), strings.NewReplacer("name: one", "name: none", "  caBundle: eA==\n", "").Replace(text))
	}
	d := w.open(t, registry)
	d.becomes(t, d.root, widgets, http.StatusOK)
	closed := strings.Replace(good, "  name: v1.widgets.example.com\n", "  name: v1.widgets.example.com\n  annotations: {fairlead.dev/maintenance: closed}\n", 1)
	var took []time.Duration
	for range rounds {
		took = nil
		for range 10 {
			took = append(took, d.renamed(t, registry, closed, http.StatusServiceUnavailable), d.renamed(t, registry, good, http.StatusOK))
		}
		slices.Sort(took)
		if took[len(took)/2] <= 100*time.Millisecond {
			break
		}
	}
	t.Logf("routed after %s (min), %s (median), %s (max)", took[0], took[len(took)/2], took[len(took)-1])
	if took[len(took)/2] > 100*time.Millisecond {
		t.Errorf("a changed file is routed after %s, want 100ms", took[len(took)/2])
	}
}

// renamed renames a file into place and returns the time until it is in effect.
func (d *door) renamed(t *testing.T, registry, text string, status int) time.Duration {
	t.Helper()
	begun := time.Now()
	suite.Put(t, filepath.Join(registry, "widgets.yaml"), text)
	for time.Since(begun) < 10*time.Second {
		if got, _ := d.ask(t, d.root, widgets+"?limit=1"); got == status {
			return time.Since(begun)
		}
	}
	t.Fatalf("no status %d within 10s of the rename", status)
	return 0
}
