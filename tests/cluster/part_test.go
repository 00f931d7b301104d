package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// start runs a shell script in a cluster without a control plane. The script is ready when it has made the file ready,
// and nobody waits any more when it has made the file late.
func start(t *testing.T, script string) (*Cluster, *Part, error) {
	t.Helper()
	c := &Cluster{dir: t.TempDir(), deaths: make(chan error, 8)}
	t.Cleanup(func() { must.Do(t, c.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	made := func(file string) error { return check.Err(os.Stat(filepath.Join(c.dir, file))) }
	p, err := c.Run(ctx, Command{
		Name: "shell", Path: "/bin/sh", Args: []string{"-c", "cd " + c.dir + "; " + script},
		Ready: func(context.Context) error {
			if made("late") == nil {
				cancel()
			}
			return made("ready")
		},
	})
	return c, p, err
}

// dead reports whether a process is gone. A zombie is: init reaps it once its parent is dead.
func dead(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ") || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// An unexpected end is reported with the log, a requested one is not. A part's children end with it.
func TestDeaths(t *testing.T) {
	c, p, err := start(t, "echo last words; sleep 600 & echo $! > child; : > ready; wait") // touch may outlive it
	must.Do(t, err)
	first, child := p.PID(), must.Get(strconv.Atoi(strings.TrimSpace(string(must.Get(os.ReadFile(filepath.Join(c.dir, "child")))(t)))))(t)
	must.Do(t, p.Restart(t.Context()))
	check.Same(t, true, dead(first) && !dead(p.PID()), "after a restart: %d dead %t, %d dead %t", first, dead(first), p.PID(), dead(p.PID()))
	must.Soon(t, 10*time.Second, "the child is dead", func() bool { return dead(child) })
	p.Kill()
	p.Kill()
	must.Do(t, p.Restart(t.Context()))
	must.Do(t, syscall.Kill(-p.PID(), syscall.SIGKILL)) // not by Part.Kill, but with its children, too
	if err := c.Wait(t.Context()); !strings.Contains(err.Error(), "shell ended: signal: killed") || !strings.Contains(err.Error(), "last words") || len(c.deaths) > 0 {
		t.Errorf("reported: %v", err)
	}
}

func TestNotReadyInTime(t *testing.T) {
	_, p, err := start(t, "echo thinking; : > late; exec sleep 600")
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "no such file") || !strings.Contains(err.Error(), "thinking") || !dead(p.PID()) {
		t.Errorf("got %v, want the end of the context, the last error of Ready, and the log", err)
	}
}

// TestParentDeath runs this test again as a parent of a process, and kills it.
func TestParentDeath(t *testing.T) {
	if os.Getenv("FAIRLEAD_TEST_PARENT") != "" {
		c, p, err := start(t, "touch ready; exec sleep 600")
		must.Do(t, err)
		fmt.Println("child", p.PID())
		<-c.deaths // never received: the parent is killed
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestParentDeath$")
		cmd.Env = append(os.Environ(), "FAIRLEAD_TEST_PARENT=1")
		out := must.Get(cmd.StdoutPipe())(t)
		must.Do(t, cmd.Start())
		child, lines := 0, bufio.NewScanner(out)
		for child == 0 && lines.Scan() {
			_, _ = fmt.Sscanf(lines.Text(), "child %d", &child)
		}
		must.Do(t, cmd.Process.Signal(sig))
		_ = cmd.Wait() // killed: the error says only that
		must.Be(t, child != 0, "the parent started no child")
		must.Soon(t, 10*time.Second, "the child is dead", func() bool { return dead(child) })
	}
}
