//go:build e2e

package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// inside is set in the environment of the process that runs the tests, in the namespaces that TestMain has made.
const inside = "FAIRLEAD_FAULTS_INSIDE"

func TestMain(m *testing.M) {
	lists := slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.list") })
	if lists || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	os.Exit(again())
}

// again runs this program once more, in a network and a mount namespace of its own. They end with it, however it ends.
func again() int {
	runtime.LockOSThread() // the child is killed when the thread that made it ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	}
	if err != nil {
		fmt.Println("making a network namespace (this needs root):", err)
		return 1
	}
	return 0
}
