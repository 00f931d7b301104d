//go:build unix && !linux

package cluster

import "syscall"

// dieWithParent does nothing where the kernel offers nothing: there a parent that is killed outright leaves its parts to be killed by hand.
func dieWithParent(*syscall.SysProcAttr) {}
