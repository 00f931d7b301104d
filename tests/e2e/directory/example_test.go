//go:build e2e

package directory

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/alone"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// testExample runs make example, and then every command that it suggests.
func testExample(t *testing.T, _ *world) {
	dir := filepath.Join(t.TempDir(), "example")
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)               // it may compile first
	taken := must.Get(new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"))(t) // so the example must find another port
	t.Cleanup(func() { _ = taken.Close() })
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "-C", "../../..", "example", fmt.Sprintf("EXAMPLEARGS=-dir=%s -secure-port=%d -admin-secure-port=0", dir, taken.Addr().(*net.TCPAddr).Port)) //nolint:forcetypeassert // a TCP listener's
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                                                                                                                                                        // as in a terminal: Ctrl-C reaches the group
	out, errs := &logbook.Book{}, &logbook.Book{}
	cmd.Stdout, cmd.Stderr = out, errs
	must.Do(t, cmd.Start())
	interrupt := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	t.Cleanup(func() { _ = interrupt() }) // it has exited already, unless the test failed before
	suite.Eventually(t, 10*time.Minute, "it is running", func() (bool, string) {
		return strings.Contains(out.String(), "Ctrl-C ends everything."), out.String() + errs.String()
	})

	k := kubectl.As(t, cluster.Endpoint{}, cluster.Credentials{})
	k.Kubeconfig = filepath.Join(dir, "kubeconfig")
	_, export, _ := strings.Cut(out.String(), "\n  export ")
	export, _, _ = strings.Cut(export, "\n")
	enter := func(t *testing.T, command string) suite.Answer { // as a user with kubectl, in another folder
		cmd := exec.CommandContext(t.Context(), "bash", "-c", "export "+export+"; "+command)
		cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "HOME="+t.TempDir(), "PATH="+filepath.Dir(suite.Tool(t, "kubectl"))+":"+os.Getenv("PATH"))
		return suite.Run(t, cmd, "")
	}
	want := map[string]string{ // :: suggested command → text that its output must contain
		"kubectl get apiservices": "harbour/tides     True", "kubectl api-resources": "tides.example.com/v1", "kubectl get tides": "dover", "kubectl explain tides.status": "askedBy",
		"kubectl get widgets -A": "widget-002", "kubectl fairlead status": "Users are served.", "kubectl delete widget widget-000": "deleted",
		`kubectl --kubeconfig "` + dir + `/kubeconfig-sailor" get tide dover -o yaml`: "askedBy: sailor",
	}
	for line := range strings.Lines(out.String()) {
		command, comment, _ := strings.Cut(strings.TrimSpace(line), "#")
		command = strings.TrimSpace(command)
		if !strings.HasPrefix(command, "kubectl ") {
			continue
		}
		t.Run(strings.ReplaceAll(command, dir, ""), func(t *testing.T) {
			text, code := want[command], 0
			if strings.Contains(comment, "forbidden") {
				text, code = "Forbidden", 1
			}
			must.Be(t, text != "", "this test does not know the command's output")
			if a := enter(t, command); a.Code != code || !strings.Contains(a.Out+a.Errs, text) {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", a.Code, code, text, a.Out, a.Errs)
			}
		})
		delete(want, command)
	}
	check.Same(t, 0, len(want), "it does not suggest %v:\n%s", want, out)
	t.Run("the folder is followed", func(t *testing.T) {
		file := filepath.Join(dir, "registry", "widgets.yaml")
		text := must.Get(os.ReadFile(file))(t)
		suite.Put(t, file, strings.Replace(string(text), "annotations:", "annotations:\n    fairlead.dev/maintenance: hull repairs", 1))
		suite.Eventually(t, 30*time.Second, "in maintenance", func() (bool, string) {
			a := k.Try(t, "", "get", "widgets", "-A")
			return strings.Contains(a.Errs, "hull repairs"), a.Errs
		})
	})
	t.Run("a second one in the same folder is refused", func(t *testing.T) {
		a := suite.Run(t, exec.CommandContext(t.Context(), "../../../bin/directory", "-dir="+dir), "")
		check.Same(t, 1, a.Code, "exit code: %s", a.Out)
		check.Has(t, a.Errs, "another example uses this folder")
	})
	t.Run("an interrupt ends all", func(t *testing.T) {
		url := k.Run(t, "config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
		must.Do(t, interrupt())
		_ = cmd.Wait() // for the last process that could write; make reports the interrupt as an error
		if !slices.Contains(strings.Split(errs.String(), "\n"), "example: interrupted, stopping") || strings.Contains(errs.String(), "Error") {
			t.Errorf("it printed:\n%s", errs.String())
		}
		status, body := alone.Get(t, &http.Client{Timeout: 5 * time.Second}, url)
		check.Same(t, true, status == 0 && strings.Contains(body, "refused"), "the front door still answers: %d %s", status, body)
		suite.Eventually(t, 15*time.Second, "no process left", func() (bool, string) {
			left := processes(t, dir)
			return len(left) == 0, strings.Join(left, "\n")
		})
	})
}

// processes returns the command lines that contain dir.
func processes(t *testing.T, dir string) []string {
	t.Helper()
	files := must.Get(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	var found []string
	for _, file := range files {
		args, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(args), dir) { // else the process has exited
			found = append(found, strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return found
}
