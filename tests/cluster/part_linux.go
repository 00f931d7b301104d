package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// dieWithParent makes the kernel kill the child when the thread that forked it exits; Part.supervise keeps that thread.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// waitStopped waits until SIGSTOP has stopped every thread of a process: on a busy machine some continue for a while.
func waitStopped(pid int) error {
	const most = 5 * time.Second // a thousand times what an idle machine needs
	is := func(context.Context) (bool, error) { return stopped(pid), nil }
	if err := wait.PollUntilContextTimeout(context.Background(), time.Millisecond, most, true, is); err != nil {
		return fmt.Errorf("stopping process %d: %w", pid, err)
	}
	return nil
}

func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false
	}
	for _, file := range threads {
		stat, err := os.ReadFile(file)
		if err == nil && !strings.Contains(string(stat), ") T ") { // a thread that has ended meanwhile does not count
			return false
		}
	}
	return true
}
