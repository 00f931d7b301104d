//go:build e2e

package directory

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// as makes a kubectl of a user.
func (d *door) as(t *testing.T, cr cluster.Credentials) kubectl {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	must.Do(t, d.front.WriteKubeconfig(file, cr))
	return kubectl{d.w.kubectl, []string{"--kubeconfig", file, "--cache-dir", filepath.Join(dir, "cache")}}
}

// kubectl is kubectl as one user.
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
	cmd := k.command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// run runs kubectl, which must succeed and print every one of want.
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
