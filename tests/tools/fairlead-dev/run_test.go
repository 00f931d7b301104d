//go:build e2e

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/kubectl"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

type dev struct {
	dir               string
	stop              context.CancelFunc
	result            chan error // of run
	printed, progress *logbook.Book
}

// startDev returns once it has printed what to try.
func startDev(t *testing.T, args ...string) dev {
	t.Helper()
	dir := t.TempDir()
	fairlead := suite.Build(t, dir, "cmd/kubectl-fairlead")
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Minute) // of all that the test does
	d := dev{dir: filepath.Join(dir, "dev"), stop: stop, result: make(chan error, 1), printed: &logbook.Book{}, progress: &logbook.Book{}}
	go func() {
		d.result <- run(ctx, append([]string{"-dir", d.dir, "-fairlead", fairlead, "-secure-port", "0", "-admin-secure-port", "0"}, args...), d.printed, d.progress)
	}()
	t.Cleanup(stop)
	d.tells(t, d.printed, "Ctrl-C ends everything")
	return d
}

// tells waits for a text.
func (d dev) tells(t *testing.T, where *logbook.Book, text string) {
	t.Helper()
	suite.Eventually(t, 20*time.Minute, text, func() (bool, string) {
		if len(d.result) > 0 {
			t.Fatalf("it ended before it told %q: %v\n%s", text, <-d.result, d.progress)
		}
		return strings.Contains(where.String(), text), d.progress.String()
	})
}

// parts counts the processes that have d's folder in their arguments, by executable name.
func (d dev) parts(t *testing.T) map[string]int {
	t.Helper()
	files := must.Get(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	out := map[string]int{}
	for _, file := range files {
		args, err := os.ReadFile(file) // it has ended
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && pid != os.Getpid() && strings.Contains(string(args), d.dir) {
			name, _, _ := strings.Cut(string(args), "\x00")
			out[filepath.Base(name)] = pid
		}
	}
	return out
}

func (d dev) endsAll(t *testing.T) {
	d.stop()
	check.Fault(t, "", <-d.result, "run")
	check.Same(t, map[string]int{}, d.parts(t), "processes left running")
}

func TestDev(t *testing.T) {
	d := startDev(t)
	printed := d.printed.String()
	d.tells(t, d.progress, "fairlead-dev: kube-controller-manager is ready")
	k := kubectl.As(t, cluster.Endpoint{}, cluster.Credentials{})
	k.Kubeconfig = filepath.Join(d.dir, "kubeconfig")
	t.Run("the promised command shows something", func(t *testing.T) { check.Has(t, k.Run(t, "get", "flunders", "-A"), "bowline") })
	t.Run("the kubeconfig points at Fairlead", func(t *testing.T) {
		server := k.Run(t, "config", "view", "-o", "jsonpath={.clusters[0].cluster.server}")
		check.Has(t, printed, "front door   "+server)
	})
	for command, want := range map[string]string{
		"kubectl fairlead status": "v1beta1.wardle.example.com", "kubectl fairlead lint --allow-loopback-backends": "to do: user system:serviceaccount:kube-system:fairlead",
	} {
		t.Run(command, func(t *testing.T) {
			_, export, _ := strings.Cut(printed, "\n  export ")
			export, _, _ = strings.Cut(export, "\n")
			must.Be(t, strings.Contains(printed, "\n  "+command+" "), "it is not suggested in:\n%s", printed)
			cmd := exec.CommandContext(t.Context(), "bash", "-c", "export "+export+"; "+command)
			cmd.Dir = t.TempDir() // a suggestion works anywhere
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) || strings.Contains(string(out), "loopback") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	t.Run("all parts run", func(t *testing.T) {
		got := d.parts(t)
		for _, want := range []string{"etcd", "kube-apiserver", "sample-apiserver", "fairlead", "kube-controller-manager"} {
			check.Same(t, true, got[want] != 0, "no %s among %v", want, got)
		}
	})
	t.Run("a second one in the same folder is refused", func(t *testing.T) {
		err := run(t.Context(), []string{"-dir", d.dir, "-fairlead", "/bin/true"}, io.Discard, io.Discard)
		check.Fault(t, "another fairlead-dev uses this folder", err, "run")
	})
	t.Run("one that dies is named, and the others run on", func(t *testing.T) {
		pid := d.parts(t)["sample-apiserver"]
		must.Be(t, pid != 0, "sample-apiserver is not running")
		must.Do(t, syscall.Kill(pid, syscall.SIGKILL))
		d.tells(t, d.progress, "fairlead-dev: sample-apiserver.wardle ended: signal: killed; all other parts keep running")
		left := d.parts(t)
		check.Same(t, true, len(left) == 4 && left["fairlead"] != 0, "running: %v", left)
	})
	t.Run("an interrupt ends all", d.endsAll)
}

func TestUsage(t *testing.T) {
	var errs bytes.Buffer
	err := run(t.Context(), []string{"-no-such-flag"}, io.Discard, &errs)
	check.Same(t, true, err != nil && strings.Contains(errs.String(), "usage: fairlead-dev"), "got %v, printed %q", err, errs.String())
	check.Fault(t, "make build", run(t.Context(), []string{"-fairlead", filepath.Join(t.TempDir(), "none")}, io.Discard, io.Discard), "run without fairlead")
}
