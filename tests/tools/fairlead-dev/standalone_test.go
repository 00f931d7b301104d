//go:build e2e

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Each command that fairlead-dev suggests prints what it should.
func TestStandalone(t *testing.T) {
	d := startDev(t, "-standalone")
	want := []string{"v1.widgets.example.com created", "condition met", "widget-002", "widget-002", "v1.widgets.example.com"}
	for line := range strings.Lines(d.printed.String()) {
		words := strings.Fields(strings.ReplaceAll(strings.Split(line, "#")[0], `"`, "")) // this folder has no blank
		if len(words) < 2 || words[0] != "kubectl" {
			continue
		}
		must.Be(t, len(want) != 0, "unexpected suggestion: %s", line)
		t.Run(strings.ReplaceAll(strings.Join(words[1:], " "), d.dir, ""), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), filepath.Join(d.dir, words[0]), words[1:]...)
			cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(d.dir, "kubeconfig"))
			out := &logbook.Book{}
			cmd.Stdout, cmd.Stderr = out, out
			must.Do(t, cmd.Start())
			watches := words[len(words)-1] == "-w"
			if watches { // until somebody interrupts it
				must.Soon(t, time.Minute, want[0], func() bool { return strings.Contains(out.String(), want[0]) })
				must.Do(t, cmd.Process.Signal(os.Interrupt))
			}
			if err := cmd.Wait(); err != nil && !watches || !strings.Contains(out.String(), want[0]) {
				t.Errorf("%v, want %q:\n%s", err, want[0], out)
			}
		})
		want = want[1:]
	}
	check.Same(t, 0, len(want), "no suggestion whose output contains %q:\n%s", want, d.printed)
	t.Run("there is no Kubernetes", func(t *testing.T) {
		got := d.parts(t)
		if len(got) != 2 || got["etcd"] == 0 || got["fairlead"] == 0 { // fairlead and fairlead-dev share a name
			t.Errorf("running: %v", got)
		}
	})
	t.Run("an interrupt ends all", d.endsAll)
}
