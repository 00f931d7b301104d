//go:build e2e

package operate

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// stub stands for each program of the tutorial that reaches other machines, and for time. It
// records how it is called and what it is sent, and says what the tutorial waits for. Only the one
// command that is to fail does not, so that its wait gives up.
const stub = `#!/bin/sh
{ echo "${0##*/}"; for argument; do echo "<$argument>"; done; } >>"$RECORD"
case $0 in
*/ssh) cat >>"$RECORD" ;;
*/sleep) exit 1 ;;
*/date) echo tick >>"$RECORD.time"; echo $(($(wc -l <"$RECORD.time") * 100)) ;;
*/kubectl) echo 'fairlead_request_total{group="metrics.k8s.io",verb="get"} v0.2.0 Users are served' ;;
esac
`

// testShells requires that sh, bash and zsh make the same commands of the tutorial, and that none
// of its waits is endless.
func testShells(t *testing.T) {
	var script, changed string
	for _, b := range blocksOf(read(t, "../../../docs/tutorial.md")) {
		if b.kind == "sh" {
			script += b.text
		}
	}
	first := documented(t, "tutorial.md", "1. Look at what is there")[0].text
	for _, section := range []string{"HAProxy and keepalived on the control planes", "kube-vip"} {
		changed += first + documented(t, "topologies.md", section)[0].text + documented(t, "tutorial.md", "4. Everything")[0].text + documented(t, "tutorial.md", "6. Back in a minute")[0].text
	}
	want := ""
	for _, shell := range []string{"bash", "dash", "sh", "zsh"} {
		t.Run(shell, func(t *testing.T) {
			got := recorded(t, shell, script+changed)
			if n := strings.Count(got, "\nssh\n"); n < 40 || !strings.Contains(got, "<https://10.0.0.13:8444/readyz>") {
				t.Fatalf("%d commands were run on nodes:\n%s", n, got)
			}
			if want == "" {
				want = got // bash's, which the other tests run
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("bash (-) and %s (+) differ:\n%s", shell, diff)
			}
		})
	}
}

// recorded runs a script with a shell, and returns what the stubs record.
func recorded(t *testing.T, shell, script string) string {
	t.Helper()
	dir := t.TempDir()
	copyDeploy(t, dir)
	for _, name := range []string{"ssh", "sleep", "date", "kubectl", "curl"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(stub), 0o700))
	}
	args := []string{"-c", script}
	if shell == "zsh" {
		args = []string{"-f", "-c", script} // without this machine's start-up files
	}
	if a := suite.Run(t, exec.CommandContext(t.Context(), shell, append([]string{"-n"}, args...)...), ""); a.Code != 0 || a.Errs != "" {
		t.Errorf("%s -n: exit code %d\n%s", shell, a.Code, a.Errs)
	}
	cmd := exec.CommandContext(t.Context(), shell, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "RECORD="+filepath.Join(dir, "record"))
	if a := suite.Run(t, cmd, ""); a.Errs != "" {
		t.Errorf("%s: exit code %d\n%s", shell, a.Code, a.Errs)
	}
	return read(t, filepath.Join(dir, "record"))
}
