//go:build e2e

package directory

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

// as returns kubectl for a user of Fairlead.
func (d *door) as(t *testing.T, cr cluster.Credentials) kubectl {
	t.Helper()
	return d.w.as(t, d.front, cr)
}

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
