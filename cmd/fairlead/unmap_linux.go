package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// unmap releases the pages of the program's file until they are used again: nearly all were used at
// the start, and a third is used later. They stay in the page cache, from which the kernel maps
// them again without I/O, or drops them when memory is short.
func unmap() {
	maps, err := os.ReadFile("/proc/self/smaps") // without /proc there is nothing to do
	if err != nil {
		return
	}
	for _, m := range unmodified(string(maps)) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED) // only advice
	}
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// unmodified returns the mappings of files that cannot be written to and have no modified pages, in
// memory or in swap: such pages of an executable relocated at the start would lose content.
func unmodified(smaps string) (clean []mapping) {
	var m mapping // empty if it does not qualify
	for line := range strings.Lines(smaps) {
		f := strings.Fields(line)
		switch {
		case !strings.HasSuffix(f[0], ":"): // from-to, permissions, offset, device, inode, path
			m = mapping{}
			if f[1][1] != 'w' && f[4] != "0" {
				_, _ = fmt.Sscanf(f[0], "%x-%x", &m.from, &m.to)
			}
		case f[0] == "Anonymous:" && f[1] != "0":
			m = mapping{}
		case f[0] == "Swap:" && f[1] == "0" && m.from < m.to: // comes after Anonymous
			clean = append(clean, m)
		}
	}
	return clean
}
