package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// The test has a file of its own: pages of the program are used again at once.
func TestUnmap(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program")
	size := 64 * os.Getpagesize()
	must.Do(t, os.WriteFile(name, bytes.Repeat([]byte("x"), size), 0o600))
	file := must.Get(os.Open(name))(t)
	defer file.Close()
	mapped := must.Get(unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ, unix.MAP_PRIVATE))(t)
	defer func() { _ = unix.Munmap(mapped) }()
	if n := bytes.Count(mapped, []byte("x")); n != size || resident(t, name) != size>>10 {
		t.Fatalf("%d bytes are read, %d KiB are resident, want all %d bytes", n, resident(t, name), size)
	}
	unmap()
	if after := resident(t, name); after != 0 {
		t.Errorf("%d KiB are still resident", after)
	}
}

// Pages that the loader wrote before they became read-only keep their content.
func TestUnmapKeepsWhatWasWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "library")
	must.Do(t, os.WriteFile(name, make([]byte, 2*os.Getpagesize()), 0o600))
	file := must.Get(os.Open(name))(t)
	defer file.Close()
	mapped := must.Get(unix.Mmap(int(file.Fd()), 0, 2*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE))(t)
	defer func() { _ = unix.Munmap(mapped) }()
	copy(mapped, "relocated")
	must.Do(t, unix.Mprotect(mapped, unix.PROT_READ))
	unmap()
	if !bytes.HasPrefix(mapped, []byte("relocated")) {
		t.Errorf("the mapping begins with %q", mapped[:9])
	}
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
