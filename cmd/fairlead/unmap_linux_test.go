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

func TestUnmap(t *testing.T) {
	before := resident(t)
	unmap()
	if after := resident(t); after > before/2 {
		t.Errorf("%d KiB of files were resident before, %d after", before, after)
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

// resident returns how many KiB of files are resident in this process.
func resident(t *testing.T) int {
	t.Helper()
	status := must.Get(os.ReadFile("/proc/self/status"))(t)
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == "RssFile:" {
			return must.Get(strconv.Atoi(f[1]))(t)
		}
	}
	t.Fatalf("no RssFile in\n%s", status)
	return 0
}
