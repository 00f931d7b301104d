package cluster

import "syscall"

// dieWithParent has the kernel kill the child when the thread that forks it is gone. See Part.supervise, which keeps that thread.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
