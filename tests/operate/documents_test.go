//go:build e2e

package operate

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// testDocuments runs the commands of docs/operations.md that need no nodes, and parses the rest.
func testDocuments(t *testing.T, w *world) {
	data := must.Get(os.ReadFile("../../docs/operations.md"))(t)
	blocks := regexp.MustCompile("(?ms)^ *```(\\w+)\n(.*?)^ *```$").FindAllStringSubmatch(string(data), -1)
	dir := t.TempDir()
	must.Do(t, os.CopyFS(filepath.Join(dir, "deploy"), noLinks{os.DirFS("../../deploy")}))
	for name, leaf := range map[string]pki.Leaf{"serving": {CommonName: "fairlead", Names: []string{"localhost"}}, "front-proxy-client": {CommonName: "front-proxy-client"}} {
		_, _, err := w.ca.Issue(leaf).WriteFiles(dir, name)
		must.Do(t, err)
	}
	for _, name := range []string{"client-ca.crt", "requestheader-ca.crt"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), w.ca.PEM(), 0o600))
	}
	must.Do(t, os.Symlink(w.kubectl, filepath.Join(dir, "kubectl")))
	ran := 0
	for _, b := range blocks {
		line := []string{"-euo", "pipefail", "-c", b[2]}
		if b[1] == "sh" {
			ran++
		} else { // a command that needs a node must at least parse
			line = []string{"-n", "-c", regexp.MustCompile(`<\w+>`).ReplaceAllString(b[2], "x")}
		}
		if a := w.bash(t, dir, w.direct, line...); a.Code != 0 {
			t.Errorf("%s: exit code %d\n%s%s", b[2], a.Code, a.Out, a.Errs)
		}
	}
	if ran < 8 || len(blocks) < 15 {
		t.Errorf("%d blocks, of which %d were run", len(blocks), ran)
	}
	t.Run("flags", func(t *testing.T) { testDocumentedFlags(t, w) })
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

// testDocumentedFlags requires that every flag in the operators' pages exists.
func testDocumentedFlags(t *testing.T, w *world) {
	known := succeed(t, "", w.fairlead, "serve", "--help") + succeed(t, "", w.fairlead, "lint", "--help") + succeed(t, "", w.fairlead, "status", "--help") +
		succeed(t, "", filepath.Join(filepath.Dir(w.fairlead), "kubectl-fairlead"), "init", "--help")
	others := []string{ // of kubectl, kubeadm, Helm and kube-apiserver
		"--apiserver-cert-extra-sans", "--client-name", "--config", "--validity-period", "--dry-run", "--cert", "--key", "--from-file", "--namespace", "--install", "--set", "--reset-then-reuse-values",
		"--clusterrole", "--serviceaccount", "--group", "--endpoint-reconciler-type", "--show-managed-fields", "--server", "--raw", "--overwrite", "--manifest", "--archive", "--now", "--version",
		"--as", "--admin", "--certificate-authority", "--current", "--cluster", "--requestheader",
		"--tail", "--prefix", "--bump-revision", "--mark-compacted", "--subresource", "--type",
	}
	pages := must.Get(filepath.Glob("../../docs/runbooks/*.md"))(t)
	n := 0
	for _, page := range append(pages, "../../docs/operations.md", "../../docs/scaling.md", "../../docs/managed.md") {
		data := must.Get(os.ReadFile(page))(t)
		for _, flag := range regexp.MustCompile(`--[a-z][a-z0-9-]+`).FindAllString(string(data), -1) {
			n++
			ours := regexp.MustCompile(regexp.QuoteMeta(flag) + `\b[^-]`).MatchString(known)
			if !ours && !slices.Contains(others, flag) {
				t.Errorf("%s: no program has %s", filepath.Base(page), flag)
			}
		}
	}
	if n < 40 {
		t.Errorf("%d flags were found, want at least 40", n)
	}
}
