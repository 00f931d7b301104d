//go:build e2e

package hostile

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/must"
)

// TestMemoryLimit has many clients request much and read nothing, in a container without room for
// all of it. The kernel kills a process that uses more.
func TestMemoryLimit(t *testing.T) {
	const room = 128 * mib
	const limit = room / 10 * 9
	w := newWorld(t)
	script := filepath.Join(t.TempDir(), "fairlead")
	enter := "echo $$ >" + filepath.Join(container(t, room), "cgroup.procs")
	must.Do(t, os.WriteFile(script, []byte("#!/bin/sh\nset -e\n"+enter+"\nexec "+w.bin+" \"$@\"\n"), 0o700))
	w.bin = script
	d := w.open(t)
	if n := must.Get(ask.Metrics(t.Context(), d.root, "https://"+d.Admin))(t)["go_gc_gomemlimit_bytes"]; n < limit-mib || n > limit+mib { // the kernel rounds to pages
		t.Errorf("the limit is reported as %v bytes", n)
	}
	c := d.innocents().compare(t, 0.99, func(ctx context.Context) {
		for range 8 { // in each of the windows
			d.asksFrames(ctx, t, 35)
		}
	})
	_, peak := memory(t, d.Process.Pid)
	t.Logf("a container of %d MiB, 1,400 lists of 100 KB that nobody reads: %d MiB resident at most", room/mib, peak/mib)
	c.held(t, median, floodBound, room)
}

// asksFrames sends requests over HTTP/2 and never reads, so the socket fills. All windows are open.
// The connection stays open until the test ends.
func (d *door) asksFrames(ctx context.Context, t *testing.T, n int) {
	w, err := connect(ctx, d.Front, d.w.as("reader"), false, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
	if err == nil {
		t.Cleanup(w.close)
		err = w.fr.WriteWindowUpdate(0, 1<<30)
	}
	for range n {
		if err == nil {
			_, err = w.ask("GET", target, true)
		}
	}
	if err == nil {
		err = w.flush()
	}
	if err != nil {
		t.Error(err)
	}
}

// container makes a cgroup with so much memory, of the machine's version.
func container(t *testing.T, room int) string {
	t.Helper()
	top, limit := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(filepath.Join(top, "memory")); err == nil {
		top, limit = filepath.Join(top, "memory"), "memory.limit_in_bytes"
	} else if err := os.WriteFile(filepath.Join(top, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		t.Fatalf("limiting memory (needs root): %v", err)
	}
	dir, err := os.MkdirTemp(top, "fairlead-") //nolint:usetesting // it has to be there
	if err != nil {
		t.Fatalf("making a control group (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	must.Do(t, os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(room)), 0))
	return dir
}
