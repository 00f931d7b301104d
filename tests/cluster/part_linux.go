package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// dieWithParent makes the kernel kill the child when the thread that forked it exits;
// Part.supervise keeps that thread.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// waitStopped waits until SIGSTOP has stopped every thread of a process: on a busy machine some
// continue for a while.
func waitStopped(pid int) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range 5000 { // 5 s, a thousand times what an idle machine needs
		if stopped(pid) {
			return nil
		}
		<-tick.C
	}
	return fmt.Errorf("process %d does not stop", pid)
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
