package main

import (
	"fmt"
	"os"
	"syscall"
)

// lock prevents two fairlead-devs from sharing a folder: the second would delete the first one's
// store. The kernel releases the lock when the process ends.
func lock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("locking %s (another fairlead-dev uses this folder; choose one with -dir): %w", file, err)
	}
	return func() { _ = f.Close() }, nil
}
