package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

// inside is set in the environment of the process that does the work, in the namespace that isolate
// has made.
const inside = "FAIRLEAD_SOAK_INSIDE"

func isolated() bool { return os.Getenv(inside) != "" }

// isolate runs this program once more, in a network namespace of its own, which ends with it.
func isolate() int {
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // the child is told, too, and this one reports how it ended
	runtime.LockOSThread()                       // the child is killed when the thread that made it ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
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

// network gives the namespace a loopback, and makes all of 10.79/16 this machine's own: each
// extension server has an address of its own there.
func network() error {
	for _, args := range []string{"link set lo up", "route add local 10.79.0.0/16 dev lo"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	return nil
}
