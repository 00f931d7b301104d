//go:build e2e

// Package netns gives the tests of a package a network namespace, in which they may have addresses
// that are not loopback: Kubernetes refuses loopback addresses as endpoints. Packets never leave
// the machine. It needs Linux, root and iproute2.
package netns

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

// inside is set in the environment of the process that runs the tests in the new namespaces.
const inside = "FAIRLEAD_NETNS_INSIDE"

// Main is for TestMain. It runs this program again in new network and mount namespaces, which always end with it.
func Main(m *testing.M) int {
	lists := slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.list") })
	if lists || os.Getenv(inside) != "" {
		return m.Run()
	}
	runtime.LockOSThread() // the child is killed when the thread that started it ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Not Cloneflags: only for these does Go make all mounts private. Where systemd has shared them, the machine would
	// get what tests mount, and keep it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
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

// Up brings up loopback, and adds networks (such as 10.79.0.0/16) whose every address is this machine.
func Up(t *testing.T, networks ...string) {
	t.Helper()
	IP(t, "link set lo up")
	for _, n := range networks {
		IP(t, "route replace local "+n+" dev lo")
	}
}

// Add makes a namespace that is connected to this one: each side has an address of a network of 24 bits.
func Add(t *testing.T, name, here, there string) {
	t.Helper()
	for _, command := range []string{
		"netns add " + name, "link add to-" + name + " type veth peer name eth0 netns " + name,
		"address add " + here + "/24 dev to-" + name, "link set to-" + name + " up",
		"-n " + name + " link set lo up", "-n " + name + " address add " + there + "/24 dev eth0", "-n " + name + " link set eth0 up",
	} {
		IP(t, command)
	}
}

// IP runs a command of iproute2.
func IP(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", command, err, out)
	}
}

// Hide mounts an empty folder over one of the machine's, only for these tests.
func Hide(t *testing.T, folder string) {
	t.Helper()
	err := errors.Join(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), os.MkdirAll(folder, 0o755), syscall.Mount("tmpfs", folder, "tmpfs", 0, ""))
	if err != nil {
		t.Fatalf("hiding %s: %v", folder, err)
	}
}
