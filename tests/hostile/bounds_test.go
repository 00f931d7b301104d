//go:build e2e

package hostile

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// lame is a peer that begins something and stalls, or almost.
type lame struct {
	name  string
	proto string        // what it negotiates; empty: no TLS at all
	say   string        // what it sends first
	drip  string        // what it sends again every half second until cut off
	bound time.Duration // for how long the connection lives
}

// slack allows for the ticks that enforce bounds, a second apart at most, and as much again for a busy machine.
const slack = 2 * time.Second

func lames() []lame {
	const (
		head = 32 * time.Second // kube-apiserver's ReadHeaderTimeout, also of the handshake
		h2   = 10 * time.Second // the engine's for prefaces and heads; net/http's for prefaces
		rest = 5 * time.Second  // for the rest of a body after the answer
		drop = 1 * time.Second  // for a short one before a refusal
		asks = 2 * time.Second  // the request's own timeout
	)
	post := func(fields string) string {
		return "POST " + target + "?timeout=2s HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n"
	}
	return []lame{
		{name: "no handshake", bound: head},
		{name: "half a head over HTTP/1.1", proto: "http/1.1", say: "GET / HTTP/1.1\r\nHost: x\r\n", drip: "X: y\r\n", bound: head},
		{name: "no preface over HTTP/2", proto: "h2", bound: h2},
		{name: "a body that drips", proto: "http/1.1", say: post("Content-Length: 100000\r\n"), drip: "x", bound: asks + rest},
		{name: "a body that nobody wants", proto: "http/1.1", say: strings.Replace(post("Authorization: Basic eDp5\r\nContent-Length: 100000\r\n"), target, "/nowhere", 1), drip: "x", bound: drop + rest},
	}
}

// testSlow opens several connections of each kind at once, and checks how long they live.
func testSlow(t *testing.T, d *door) {
	for _, l := range lames() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			var peers sync.WaitGroup
			for range 20 {
				peers.Go(func() {
					took, err := d.outlive(t.Context(), l)
					if err != nil || took < l.bound-slack || took > l.bound+slack { // sooner than its bound, it was cut for another reason
						t.Errorf("cut after %s, want %s: %v", took, l.bound, err)
					}
				})
			}
			peers.Wait()
		})
	}
}

func (d *door) outlive(ctx context.Context, l lame) (took time.Duration, err error) {
	defer try.Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, 70*time.Second)
	defer cancel()
	begun := time.Now()
	conn := try.Get(new(net.Dialer).DialContext(ctx, "tcp", d.Front))
	defer func() { _ = conn.Close() }()
	if l.proto != "" {
		as := d.w.as("lame")
		as.NextProtos, as.ServerName = []string{l.proto}, "localhost"
		t := tls.Client(conn, as)
		try.Do(t.HandshakeContext(ctx))
		conn, begun = t, time.Now()
	}
	try.Get(io.WriteString(conn, l.say))
	for ctx.Err() == nil {
		try.Do(conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond)))
		if _, err := io.Copy(io.Discard, conn); !errors.Is(err, os.ErrDeadlineExceeded) {
			return time.Since(begun), nil
		}
		if _, err := io.WriteString(conn, l.drip); err != nil {
			return time.Since(begun), nil
		}
	}
	return time.Since(begun), fmt.Errorf("the connection is still open")
}

// TestMemoryLimit has many clients request much and read nothing, in a container without room for
// all of it. The kernel kills a process that uses more.
func TestMemoryLimit(t *testing.T) {
	const room = 128 * mib
	const limit = room / 10 * 9
	w := newWorld(t)
	w.contain(t, room)
	d := w.open(t)
	m := must.Get(ask.Metrics(t.Context(), d.root, "https://"+d.Admin))(t)
	for name, want := range map[string]float64{"go_gc_gomemlimit_bytes": limit, "fairlead_memory_limit_bytes": limit / 4} {
		if m[name] < want-mib || m[name] > want+mib { // the kernel rounds to pages
			t.Errorf("%s is %v, want %v", name, m[name], want)
		}
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
	if err != nil {
		t.Error(err)
		return
	}
	t.Cleanup(w.close)
	err = w.fr.WriteWindowUpdate(0, 1<<30)
	for range n {
		_, asked := w.ask("GET", target, true)
		err = errors.Join(err, asked)
	}
	check.Fault(t, "", errors.Join(err, w.flush()), "asking")
}

// contain makes Fairlead run with so much memory: the kernel kills a process that uses more. Its
// limit is not a resident size, which has the pages of the executable file, too.
func (w *world) contain(t *testing.T, room int) {
	t.Helper()
	script := filepath.Join(t.TempDir(), "fairlead")
	enter := "echo $$ >" + filepath.Join(container(t, room), "cgroup.procs")
	must.Do(t, os.WriteFile(script, []byte("#!/bin/sh\nset -e\n"+enter+"\nexec "+w.bin+" \"$@\"\n"), 0o700))
	w.bin = script
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
	must.Be(t, err == nil, "making a control group (needs root): %v", err)
	t.Cleanup(func() { check.Fault(t, "", os.Remove(dir), "removing the control group") })
	must.Do(t, os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(room)), 0))
	return dir
}
