package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnmap(t *testing.T) {
	before := resident(t)
	unmap()
	if after := resident(t); after > before/2 {
		t.Errorf("%d KiB of files were resident, and %d are", before, after)
	}
}

// A loader writes to what is read-only afterwards.
func TestUnmapKeepsWhatWasWritten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "library")
	if err := os.WriteFile(name, make([]byte, 2*os.Getpagesize()), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	mapped, err := unix.Mmap(int(file.Fd()), 0, 2*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mapped) }()
	copy(mapped, "relocated")
	if err := unix.Mprotect(mapped, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	unmap()
	if !bytes.HasPrefix(mapped, []byte("relocated")) {
		t.Errorf("the mapping begins with %q", mapped[:9])
	}
}

// resident is how much of files is mapped into this process, in KiB.
func resident(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == "RssFile:" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no RssFile in\n%s", status)
	return 0
}
