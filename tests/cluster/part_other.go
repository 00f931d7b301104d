//go:build unix && !linux

package cluster

import "syscall"

// dieWithParent does nothing where the kernel offers nothing: there a parent that is killed
// outright leaves its parts to be killed by hand.
func dieWithParent(*syscall.SysProcAttr) {}

// waitStopped has no way to see it here.
func waitStopped(int) error { return nil }
