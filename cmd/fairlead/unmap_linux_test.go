package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// Read-only pages of a file leave memory, but not those that may be written to, and those that the loader wrote before
// they became read-only keep their content. The files are the test's own: pages of the program are used again at once.
func TestUnmap(t *testing.T) {
	size := 64 * os.Getpagesize()
	name, mapped := mapFile(t, size, unix.PROT_READ)
	other, writable := mapFile(t, size, unix.PROT_READ|unix.PROT_WRITE)
	_, relocated := mapFile(t, size, unix.PROT_READ|unix.PROT_WRITE)
	check.Same(t, 2*size, bytes.Count(mapped, []byte("x"))+bytes.Count(writable, []byte("x")), "bytes that are read")
	check.Same(t, size>>10, resident(t, name), "KiB that are resident at first")
	copy(relocated, "relocated")
	must.Do(t, unix.Mprotect(relocated, unix.PROT_READ))
	unmap()
	check.Same(t, 0, resident(t, name), "KiB that are still resident")
	check.Same(t, size>>10, resident(t, other), "KiB that may be written to at any moment")
	check.Same(t, true, bytes.HasPrefix(relocated, []byte("relocated")), "the mapping begins with %q", relocated[:9])
}

// Modified pages are in memory or in swap; memory without a file has no other copy.
func TestUnmodified(t *testing.T) {
	var maps strings.Builder
	for i, m := range []struct{ access, inode, anonymous, swap string }{
		{"r-xp", "7", "0", "0"}, {"rw-p", "7", "0", "0"}, {"r--p", "0", "0", "0"}, {"r--p", "7", "4", "0"}, {"r--p", "7", "0", "4"}, {"r--p", "7", "0", "0"},
	} {
		fmt.Fprintf(&maps, "%x000-%x000 %s 0 08:01 %s /file\nRss: 4 kB\nAnonymous: %s kB\nSwap: %s kB\nSwapPss: 0 kB\nVmFlags: rd\n", i+1, i+2, m.access, m.inode, m.anonymous, m.swap)
	}
	check.Same(t, fmt.Sprint([]mapping{{0x1000, 0x2000}, {0x6000, 0x7000}}), fmt.Sprint(unmodified(maps.String())), "mappings")
}

// mapFile maps a new file until the test ends, as the loader maps a program.
func mapFile(t *testing.T, size, access int) (name string, mapped []byte) {
	t.Helper()
	name = writeFile(t, filepath.Join(t.TempDir(), "mapped"), strings.Repeat("x", size))
	file := must.Get(os.Open(name))(t)
	defer file.Close() // the mapping stays
	mapped = must.Get(unix.Mmap(int(file.Fd()), 0, size, access, unix.MAP_PRIVATE))(t)
	t.Cleanup(func() { _ = unix.Munmap(mapped) })
	return name, mapped
}

// resident returns how many KiB of a mapped file are resident in this process.
func resident(t *testing.T, name string) int {
	t.Helper()
	maps := must.Get(os.ReadFile("/proc/self/smaps"))(t)
	_, mapping, _ := strings.Cut(string(maps), name+"\n")
	_, size, ok := strings.Cut(mapping, "Rss:")
	must.Be(t, ok, "%s is not mapped in\n%s", name, maps)
	return must.Get(strconv.Atoi(strings.Fields(size)[0]))(t)
}
