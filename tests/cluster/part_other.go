//go:build unix && !linux

package cluster

import "syscall"

// dieWithParent does nothing: this kernel cannot do it. If the parent is killed, its children must be killed by hand.
func dieWithParent(*syscall.SysProcAttr) {}

// waitStopped does nothing: it cannot see threads here.
func waitStopped(int) error { return nil }
