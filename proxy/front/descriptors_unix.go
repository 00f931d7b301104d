//go:build unix

package front

import (
	"syscall"
)

// descriptorLimit returns how many files and sockets this process may have open. Go has raised the
// soft limit to the hard one.
func descriptorLimit() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur > 1<<20 {
		return 1 << 20 // a million connections take about 40 GB: other limits come first
	}
	return int(l.Cur) // bounded just above
}
