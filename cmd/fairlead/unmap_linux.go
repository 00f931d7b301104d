package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// unmap releases the pages of the program's file until they are used again: nearly all were used at
// the start, and a third is used later. They stay in the page cache, from which the kernel maps
// them again without I/O, or drops them when memory is short. It leaves modified pages alone, such
// as those of an executable that is relocated at the start.
func unmap() {
	maps, err := os.ReadFile("/proc/self/smaps") // without /proc there is nothing to do
	if err != nil {
		return
	}
	var from, to uintptr // of the current mapping; equal if it has no file or is writable
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		switch {
		case !strings.HasSuffix(f[0], ":"): // from-to, permissions, offset, device, inode, path
			from, to = 0, 0
			if f[1][1] != 'w' && f[4] != "0" {
				_, _ = fmt.Sscanf(f[0], "%x-%x", &from, &to)
			}
		case f[0] == "Anonymous:" && f[1] == "0" && from < to:
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED) // only advice
		}
	}
}
