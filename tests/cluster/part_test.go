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

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// bare is a cluster without a control plane.
func bare(t *testing.T, dir string) *Cluster {
	t.Helper()
	c := &Cluster{dir: dir, deaths: make(chan error, 8)}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func shell(name, script string) Command {
	return Command{Name: name, Path: "/bin/sh", Args: []string{"-c", script}}
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// An unexpected end is reported with the log, a requested one is not. A part's children end with
// it.
func TestDeaths(t *testing.T) {
	c := bare(t, t.TempDir())
	file := filepath.Join(c.dir, "child")
	forker := shell("forker", "sleep 600 & echo $! >"+file+".tmp; mv "+file+".tmp "+file+"; wait")
	forker.Ready = func(context.Context) error { _, err := os.Stat(file); return err }
	p := must.Get(c.Run(t.Context(), forker))(t)
	first, child := p.PID(), must.Get(strconv.Atoi(strings.TrimSpace(string(must.Get(os.ReadFile(file))(t)))))(t)
	must.Do(t, p.Restart(t.Context()))
	if alive(first) || !alive(p.PID()) || first == p.PID() {
		t.Errorf("after a restart: %d alive %t, %d alive %t", first, alive(first), p.PID(), alive(p.PID()))
	}
	waitDead(t, child)
	p.Kill()
	p.Kill()
	ready := filepath.Join(c.dir, "ready")
	cmd := shell("fragile", "echo last words; touch "+ready+"; exec sleep 600")
	cmd.Ready = func(context.Context) error { _, err := os.Stat(ready); return err }
	p = must.Get(c.Run(t.Context(), cmd))(t)
	must.Do(t, syscall.Kill(p.PID(), syscall.SIGKILL)) // not by Part.Kill
	if err := c.Wait(t.Context()); !strings.Contains(err.Error(), "fragile ended") || !strings.Contains(err.Error(), "last words") {
		t.Errorf("reported: %v", err)
	}
}

func TestNotReadyInTime(t *testing.T) {
	c := bare(t, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // enough to start it on a busy machine
	defer cancel()
	cmd := shell("shy", "echo thinking; exec sleep 600")
	cmd.Ready = func(context.Context) error { return errors.New("not yet") }
	p, err := c.Run(ctx, cmd)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not yet") || !strings.Contains(err.Error(), "thinking") || alive(p.PID()) {
		t.Errorf("got %v, want the deadline, the last error of Ready, and the log", err)
	}
}

// waitDead waits until pid is gone. A zombie counts as gone: init reaps it once its parent is dead.
func waitDead(t *testing.T, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for alive(pid) && !zombie(pid) {
		select {
		case <-ctx.Done():
			t.Fatalf("process %d outlived its parent", pid)
		case <-tick.C:
		}
	}
}

func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), ") Z ")
}

// TestParentDeath runs this test again as a parent of processes, and kills it with SIGKILL.
func TestParentDeath(t *testing.T) {
	const role = "FAIRLEAD_TEST_PARENT"
	if dir := os.Getenv(role); dir != "" {
		parent(t, dir)
		return
	}
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestParentDeath$")
			cmd.Env = append(os.Environ(), role+"="+t.TempDir())
			out := must.Get(cmd.StdoutPipe())(t)
			must.Do(t, cmd.Start())
			var pids []int
			for lines := bufio.NewScanner(out); len(pids) < 3 && lines.Scan(); {
				if pid, err := strconv.Atoi(lines.Text()); err == nil {
					pids = append(pids, pid)
				}
			}
			if len(pids) != 3 {
				t.Fatalf("the parent started %v, want 3 processes", pids)
			}
			must.Do(t, cmd.Process.Signal(sig))
			_ = cmd.Wait() // killed: the error says only that
			for _, pid := range pids {
				waitDead(t, pid)
			}
		})
	}
}

func parent(t *testing.T, dir string) {
	c := &Cluster{dir: dir, deaths: make(chan error, 8)}
	for i := range 3 {
		fmt.Println(must.Get(c.Run(t.Context(), shell(fmt.Sprintf("part-%d", i), "exec sleep 600")))(t).PID())
	}
	<-c.deaths // never received: the parent is killed
}
