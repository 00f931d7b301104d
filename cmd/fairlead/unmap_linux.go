package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// unmap takes the pages of the program's file out of the process until they are used again: nearly all of them were, at the start, and a third is used later. They stay in the
// kernel's cache, which gives them back without I/O and may drop them when memory is short. What was written to, as an executable that is relocated when it starts, is left alone.
func unmap() {
	maps, err := os.ReadFile("/proc/self/smaps") // no /proc, and nothing to do
	if err != nil {
		return
	}
	var from, to uintptr // of the mapping whose properties follow; equal: not of a file, or writable
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		switch {
		case !strings.HasSuffix(f[0], ":"): // from-to, permissions, offset, device, inode, path
			from, to = 0, 0
			if f[1][1] != 'w' && f[4] != "0" {
				_, _ = fmt.Sscanf(f[0], "%x-%x", &from, &to)
			}
		case f[0] == "Anonymous:" && f[1] == "0" && from < to:
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED) // it is advice
		}
	}
}
