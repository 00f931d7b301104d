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

	"github.com/fairlead-proxy/fairlead/tests/check"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// The test has a file of its own: pages of the program are used again at once.
func TestUnmap(t *testing.T) {
	size := 64 * os.Getpagesize()
	name, mapped := mapFile(t, bytes.Repeat([]byte("x"), size), unix.PROT_READ)
	if n := bytes.Count(mapped, []byte("x")); n != size || resident(t, name) != size>>10 {
		t.Fatalf("%d bytes are read, %d KiB are resident, want all %d bytes", n, resident(t, name), size)
	}
	other, writable := mapFile(t, bytes.Repeat([]byte("x"), size), unix.PROT_READ|unix.PROT_WRITE)
	n := bytes.Count(writable, []byte("x"))
	unmap()
	if after := resident(t, name); after != 0 {
		t.Errorf("%d KiB are still resident", after)
	}
	if after := resident(t, other); after != n>>10 {
		t.Errorf("%d KiB that may be written to at any moment are still resident, want all", after)
	}
}

// Pages that the loader wrote before they became read-only keep their content.
func TestUnmapKeepsWhatWasWritten(t *testing.T) {
	_, mapped := mapFile(t, make([]byte, 2*os.Getpagesize()), unix.PROT_READ|unix.PROT_WRITE)
	copy(mapped, "relocated")
	must.Do(t, unix.Mprotect(mapped, unix.PROT_READ))
	unmap()
	if !bytes.HasPrefix(mapped, []byte("relocated")) {
		t.Errorf("the mapping begins with %q", mapped[:9])
	}
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
func mapFile(t *testing.T, content []byte, access int) (name string, mapped []byte) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "mapped")
	must.Do(t, os.WriteFile(name, content, 0o600))
	file := must.Get(os.Open(name))(t)
	defer file.Close() // the mapping stays
	mapped = must.Get(unix.Mmap(int(file.Fd()), 0, len(content), access, unix.MAP_PRIVATE))(t)
	t.Cleanup(func() { _ = unix.Munmap(mapped) })
	return name, mapped
}

// resident returns how many KiB of a mapped file are resident in this process.
func resident(t *testing.T, name string) int {
	t.Helper()
	maps := must.Get(os.ReadFile("/proc/self/smaps"))(t)
	_, mapping, _ := strings.Cut(string(maps), name+"\n")
	for line := range strings.Lines(mapping) {
		if f := strings.Fields(line); f[0] == "Rss:" {
			return must.Get(strconv.Atoi(f[1]))(t)
		}
	}
	t.Fatalf("%s is not mapped in\n%s", name, maps)
	return 0
}
